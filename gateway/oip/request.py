"""The body of an inference request: JSON, then the bytes of its binary tensors, to what the table takes.

A binary tensor stays where it lies in the body. Names, shapes and sizes are checked where all protocols
check them, by `mainspring.gateway.core.validation`; here only what that needs is made of the body.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mainspring.gateway.core.validation import Signature, rows_of
from mainspring.gateway.oip import compression, datatypes, json_data
from mainspring.gateway.oip.classification import check_classes
from mainspring.gateway.oip.datatypes import Unfit, dtype_of
from mainspring.gateway.oip.json_data import (
    InferRequest,
    LooseInput,
    LooseRequest,
    RequestInput,
    RequestInputParameters,
    RequestOutputParameters,
    RequestParameters,
)
from mainspring.gateway.oip.spans import (
    BYTE_SIZE,
    OFFSET,
    REGION,
    SharedInput,
    Span,
    check_room,
    output_span,
    shared_input,
    span_of,
)
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec, slot_bytes
from mainspring.messages.peers import TensorHeader

_NO_NUMBERS = (b"NaN", b"Infinity")
_UNCOUNTED_BYTES = 1 << 16
"""JSON up to here is read in a moment, whatever it holds."""
_MOST_OTHER_VALUES = 4_096
"""Most values in the JSON of a request beside those of its tensors."""
_MOST_TENSORS = 256
"""Most tensors that are checked one by one, of a model that has fewer."""

_DECODER = msgspec.json.Decoder(InferRequest)
_NO_PARAMETERS = RequestParameters()
_NO_INPUT_PARAMETERS = RequestInputParameters()
_Given: TypeAlias = json_data.Data | memoryview | Span | msgspec.UnsetType | None


class Form(NamedTuple):
    """The form in which an output is to be sent."""

    binary: bool
    classes: int = 0
    """Number of the highest values to name instead; 0 for the tensor itself."""
    whole: bool = False
    """True, with ``classes``, if the tensor has no axis for rows, each of which has its own highest."""
    span: Span | None = None
    """Place in shared memory where its bytes go, instead of into the reply."""
    rows_axis: int = 0
    """Axis of the rows, with ``classes``."""


JSON = Form(False)
BINARY = Form(True)


class Wanted(NamedTuple):
    """The form of the reply."""

    id: str = ""
    default: Form = JSON
    forms: Mapping[str, Form] = {}
    """Forms of outputs that were asked for by name."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """Names of classes by index, of outputs that have some."""
    however_late: bool = False
    """True if the reply has the outputs even if making it took too long: the sequence has gone on."""


class Parsed(NamedTuple):
    """A request's body."""

    inputs: tuple[TensorHeader, ...]
    frames: list[Any]
    """A bytes-like for each input, or a `SharedInput`."""
    outputs: tuple[str, ...] | None
    parameters: RequestParameters
    wanted: Wanted

    @property
    def is_binary(self) -> bool:
        """Return whether all outputs are to be sent as they are."""
        default, forms = self.wanted.default, self.wanted.forms
        if self.outputs is None:
            return default is BINARY
        found = [forms.get(name, default) for name in self.outputs]
        return all(form is BINARY or form.span is not None for form in found)

    @property
    def spans(self) -> list[Span]:
        """Return the places in shared memory of its inputs and of its outputs."""
        outputs = [form.span for form in self.wanted.forms.values() if form.span is not None]
        return [*[each.span for each in self.frames if isinstance(each, SharedInput)], *outputs]


def parse(signature: Signature, body: memoryview, json_bytes: int | None, max_json_bytes: int) -> Parsed:
    """Return what a body says; raise `Unfit`.

    ``json_bytes`` is what the header ``Inference-Header-Content-Length`` says; None without it. 0: the body
    is the model's one input.
    """
    if json_bytes == 0:
        return _raw(signature, body)
    if json_bytes is None:
        json_bytes = len(body)
    elif json_bytes > len(body):
        raise Unfit(
            Reason.BAD_MESSAGE,
            f"Inference-Header-Content-Length is {json_bytes:,} and the body has {len(body):,} bytes",
        )
    if json_bytes > max_json_bytes:
        raise compression.TooLarge(
            "the JSON", max_json_bytes, compression.JSON_KEY, "send tensors as binary data"
        )
    try:
        return _parsed(signature, body[:json_bytes], body[json_bytes:])
    except Unfit:
        if why := json_data.not_utf8(body[:json_bytes]):
            raise unreadable(why) from None
        raise


def _parsed(signature: Signature, text: memoryview, binary: memoryview) -> Parsed:
    request = _decode(signature, text)
    headers, frames = _inputs(signature, request, binary)
    wanted = _wanted(signature, request)
    placed = {name: form.span for name, form in wanted.forms.items() if form.span is not None}
    if placed:
        check_room(signature, headers, placed)
    return Parsed(
        headers,
        frames,
        tuple([output.name for output in request.outputs]) or None,
        request.parameters or _NO_PARAMETERS,
        wanted,
    )


def _inputs(
    signature: Signature, request: InferRequest | LooseRequest, binary: memoryview
) -> tuple[tuple[TensorHeader, ...], list[Any]]:
    """Return the headers of a request's inputs, and their frames, of what follows its JSON."""
    headers, frames, offset = [], [], 0
    for tensor in request.inputs:
        parameters = tensor.parameters or _NO_INPUT_PARAMETERS
        data: _Given = tensor.data
        if isinstance(data, msgspec.Raw) and bytes(memoryview(data)[:8]) == json_data.NULL:
            data = None
        size = parameters.binary_data_size
        shared = _shared(parameters)
        span = span_of(f"input {tensor.name!r}", shared) if shared else None
        if span is not None:
            if size is not None or (data is not None and not isinstance(data, msgspec.UnsetType)):
                raise Unfit(
                    Reason.BAD_INPUT,
                    f"input {tensor.name!r} is in shared memory, and came with the request too",
                )
            data = span
        elif size is not None:
            if not 0 <= size <= len(binary) - offset:
                left = f"{len(binary) - offset:,} bytes are left"
                raise Unfit(Reason.BAD_INPUT, f"input {tensor.name!r} has binary_data_size {size:,}; {left}")
            data = binary[offset : offset + size]
            offset += size
        header, frame = _tensor(signature, tensor, data)
        headers.append(header)
        frames.append(frame)
    if offset != len(binary):
        raise Unfit(
            Reason.BAD_INPUT,
            f"{len(binary) - offset:,} bytes follow the last input's; the binary_data_size of each input "
            "must sum up to what follows the JSON",
        )
    return tuple(headers), frames


def _decode(signature: Signature, text: memoryview) -> InferRequest | LooseRequest:
    check_count(signature, text)
    request = _decoded(text)
    for what, given, known in (
        ("inputs", request.inputs, signature.inputs),
        ("outputs", request.outputs, signature.outputs),
    ):
        if len(given) > max(len(known), _MOST_TENSORS):
            raise Unfit(
                Reason.BAD_MESSAGE,
                f"the request names {len(given):,} {what}; "
                f"model {signature.spec.public_name!r} has {len(known)}",
            )
    return request


def check_count(signature: Signature, text: memoryview) -> None:
    """Raise `Unfit` for more values than any request for the model has, before one of them is made.

    Reading JSON takes a time for each value, in which nobody else is served; counting commas takes next to
    none. A text may hold as many as it has bytes.
    """
    if len(text) <= _UNCOUNTED_BYTES:
        return
    most = _MOST_OTHER_VALUES + signature.most_rows * sum(
        math.prod(tensor.shape) * (1 + (slot_bytes(tensor.dtype) or 0)) for tensor in signature.spec.inputs
    )
    found = bytes(text).count(b",")
    if found > most:
        raise Unfit(
            Reason.BAD_MESSAGE,
            f"the request's JSON has some {found:,} values; one for model {signature.spec.public_name!r} "
            f"has {most:,} at most, with {signature.most_rows} rows",
        )


def _decoded(text: memoryview) -> InferRequest | LooseRequest:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        return _decoded_again(text)
    except json_data.UNREADABLE as error:
        if not any(each in bytes(text) for each in _NO_NUMBERS):
            raise unreadable(json_data.explained(error, text)) from None
    try:
        return msgspec.convert(_plain(json.loads(bytes(text))), LooseRequest)
    except (ValueError, RecursionError) as other:
        raise unreadable(json_data.explained(other, text)) from None


def _decoded_again(text: memoryview) -> InferRequest:
    """Return what is meant by a request that has null where nothing is, or whole numbers as floats."""
    try:
        return json_data.decode_request(text, InferRequest)
    except json_data.UNREADABLE as error:
        raise unreadable(json_data.explained(error, text)) from None


def _plain(given: Any) -> Any:
    """Do the same for a request that was decoded, but for its tensors' data."""
    inputs = given.get("inputs") if isinstance(given, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        return given
    data = [each.pop("data", None) for each in inputs]
    given = json_data.plain(given)
    for tensor, values in zip(given["inputs"], data, strict=True):
        if values is not None:
            tensor["data"] = values
    return given


def unreadable(why: str) -> Unfit:
    """Return the error for JSON that can't be read."""
    return Unfit(
        Reason.BAD_MESSAGE,
        f"the request's JSON can't be read: {why}",
        f"failed to parse the request JSON buffer: {why}",
    )


def _raw(signature: Signature, body: memoryview) -> Parsed:
    """Take the body for the model's one input: as many rows as it has, or one element of BYTES."""
    inputs = signature.spec.inputs
    if len(inputs) != 1:
        raise Unfit(
            Reason.BAD_INPUT,
            f"a body without JSON is a model's one input; model {signature.spec.public_name!r} has "
            f"{len(inputs)} inputs",
        )
    tensor = inputs[0]
    if tensor.open:
        tensor = _of_size(tensor, len(body))
    slot = slot_bytes(tensor.dtype)
    frame: Any = body
    if slot is not None:
        if math.prod(tensor.shape) != 1:
            raise Unfit(
                Reason.BAD_INPUT,
                f"a body without JSON is one element of BYTES; a row of input {tensor.name!r} has "
                f"{math.prod(tensor.shape)}",
            )
        rows, frame = 1, datatypes.to_slots(tensor.name, [bytes(body)], slot)
    else:
        rows, rest = divmod(len(body), tensor.row_bytes or 1)
        if rest or not rows:
            raise Unfit(
                Reason.BAD_INPUT,
                f"a body of {len(body):,} bytes without JSON is not a number of rows of input "
                f"{tensor.name!r}, which have {tensor.row_bytes:,} bytes each",
            )
    header = TensorHeader(tensor.name, tensor.dtype, signature.spec.client_shape(tensor, rows))
    return Parsed((header,), [frame], None, _NO_PARAMETERS, Wanted(default=BINARY))


def _of_size(tensor: TensorSpec, count: int) -> TensorSpec:
    """Return one row of an input with an open dimension as so many bytes make it; raise `Unfit`."""
    if len(tensor.open) > 1:
        raise Unfit(
            Reason.BAD_INPUT,
            f"a body without JSON has no shape, and {len(tensor.open)} dimensions of a row of input "
            f"{tensor.name!r} are open, of which one could follow from the size: send the request's JSON "
            "before it",
        )
    axis = tensor.open[0].axis
    shape = list(tensor.shape)
    shape[axis] = 1
    one = TensorSpec(tensor.name, tensor.dtype, tuple(shape), rows_axis=tensor.rows_axis)
    if slot_bytes(tensor.dtype) is not None:
        return one
    size, rest = divmod(count, one.row_bytes or 1)
    if rest or not size:
        raise Unfit(
            Reason.BAD_INPUT,
            f"a body of {count:,} bytes without JSON is not one row of input {tensor.name!r}, of dimensions "
            f"{', '.join(tensor.dims)}: it is a multiple of {one.row_bytes:,} bytes",
        )
    shape[axis] = size
    return TensorSpec(tensor.name, tensor.dtype, tuple(shape), rows_axis=tensor.rows_axis)


def _tensor(
    signature: Signature,
    tensor: RequestInput | LooseInput,
    data: _Given,
) -> tuple[TensorHeader, Any]:
    """Return an input's header and bytes; no bytes if the header alone says that it can't be served."""
    index = signature.inputs.get(tensor.name)
    if index is None:
        return TensorHeader(tensor.name, tensor.datatype, tensor.shape), b""
    spec = signature.spec.inputs[index]
    header = TensorHeader(
        tensor.name, dtype_of(signature.spec.public_name, spec, tensor.datatype), tensor.shape
    )
    if not rows_of(signature, spec, tensor.shape):
        return header, b""
    if data is None or isinstance(data, msgspec.UnsetType):
        raise Unfit(
            Reason.BAD_INPUT, f"input {tensor.name!r} has neither data nor the parameter binary_data_size"
        )
    if isinstance(data, Span):
        return header, shared_input(spec, tensor.shape, data)
    return header, _content(spec, math.prod(tensor.shape), data)


def _content(spec: TensorSpec, count: int, data: json_data.Data | memoryview) -> Any:
    slot = slot_bytes(spec.dtype)
    if not isinstance(data, memoryview):
        return json_data.to_bytes(spec.name, data, spec.dtype, count)
    if slot is None:
        return data
    found = datatypes.split(spec.name, data, count)
    return datatypes.to_slots(spec.name, found, slot)


def _wanted(signature: Signature, request: InferRequest | LooseRequest) -> Wanted:
    binary = request.parameters is not None and request.parameters.binary_data_output
    default = BINARY if binary else JSON
    forms = {}
    for output in request.outputs:
        parameters = output.parameters
        if parameters is None:
            continue
        classes = parameters.classification
        check_classes(signature, output.name, classes)
        shared = _shared(parameters)
        span = output_span(output.name, shared, classes) if shared else None
        asked = default.binary if parameters.binary_data is None else parameters.binary_data
        if span is not None:
            forms[output.name] = Form(True, span=span)
        elif classes:
            forms[output.name] = Form(
                asked, classes, signature.whole, rows_axis=signature.rows_axes.get(output.name, 0)
            )
        else:
            forms[output.name] = BINARY if asked else JSON
    return Wanted(request.id, default, forms)


def _shared(parameters: RequestInputParameters | RequestOutputParameters) -> dict[str, Any]:
    """Return what they say of shared memory; nothing if they don't."""
    region, size, offset = (
        parameters.shared_memory_region,
        parameters.shared_memory_byte_size,
        parameters.shared_memory_offset,
    )
    if region is None and size is None and offset is None:
        return {}
    return {REGION: region, BYTE_SIZE: size, OFFSET: offset}
