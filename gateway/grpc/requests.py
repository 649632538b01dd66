"""A ModelInferRequest as the request table takes it. Pure.

Names, shapes and sizes are checked where all protocols check them, by `gateway.core.validation`; here only
what that needs is made of the message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainspring.gateway.core.validation import Signature, rows_of
from mainspring.gateway.grpc.messages import Message, ModelInferRequest, decode
from mainspring.gateway.grpc.wire import RAW_INPUT_CONTENTS, Malformed, cut
from mainspring.gateway.oip import datatypes
from mainspring.gateway.oip.classification import check_classes
from mainspring.gateway.oip.datatypes import BYTES, DTYPES, Unfit, dtype_of
from mainspring.gateway.oip.json_data import whole
from mainspring.gateway.oip.spans import Span, output_span, shared_input, span_of
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec, slot_bytes
from mainspring.messages.peers import TensorHeader

MOST_BESIDE_BYTES = 16 << 20
"""Most bytes of a message without its raw contents: protobuf reads it while nobody else is served."""
_MOST_AXES = 64
_MOST_PARAMETERS = 1_024
_CLASSIFICATION = "classification"


class Inputs(NamedTuple):
    """The inputs of a request, without its deadline."""

    headers: tuple[TensorHeader, ...]
    frames: list[Any]
    """A bytes-like for each input, or a `SharedInput`."""


class Forms(NamedTuple):
    """The forms in which outputs are to be sent, by their names."""

    classes: dict[str, int]
    """Number of classes of each output that is to be classified."""
    spans: dict[str, Span]
    """Place of each output that goes to shared memory."""


def split(data: bytes) -> tuple[bytes, list[Any]]:
    """Return a ModelInferRequest's bytes without its raw contents, and these, uncopied.

    Raises `Unfit` for bytes that are not such a message.
    """
    try:
        beside, raw = cut(data, RAW_INPUT_CONTENTS)
    except Malformed as error:
        raise Unfit(
            Reason.BAD_MESSAGE, f"these {len(data):,} bytes are not a ModelInferRequest: {error}"
        ) from None
    if len(beside) > MOST_BESIDE_BYTES:
        raise Unfit(
            Reason.BAD_MESSAGE,
            f"the request has {len(beside):,} bytes beside raw_input_contents, and may have "
            f"{MOST_BESIDE_BYTES:,}; send large tensors there",
        )
    return beside, raw


def parse(data: bytes) -> tuple[Message, list[Any]]:
    """Return a ModelInferRequest without its raw contents, and these, uncopied; raise as `split`."""
    beside, raw = split(data)
    return decode(ModelInferRequest, beside), raw


def parameters(fields: Mapping[str, Message]) -> dict[str, Any]:
    """Return what a map of InferParameter holds; raise `Unfit` if that is absurdly much."""
    if len(fields) > _MOST_PARAMETERS:
        raise Unfit(
            Reason.BAD_MESSAGE, f"there are {len(fields):,} parameters; at most {_MOST_PARAMETERS:,} are read"
        )
    found = {}
    for name in fields:
        choice = fields[name].WhichOneof("parameter_choice")
        found[name] = None if choice is None else getattr(fields[name], choice)
    return found


def inputs(message: Message, raw: list[Any], signature: Signature) -> Inputs:
    """Return a request's inputs for the model that it names; raise `Unfit`."""
    tensors = message.inputs
    spans = [_span(f"input {each.name[:100]!r}", each, Reason.BAD_INPUT) for each in tensors]
    sent = spans.count(None)
    both = next((each.name for each in tensors if raw and each.HasField("contents")), None)
    if both is not None:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {both[:100]!r} has contents, and the request raw_input_contents; "
            "send the one or the other",
            "contents field must not be specified when using raw_input_contents for "
            f"'{both[:100]}' for model '{signature.spec.public_name}'",
        )
    if raw and len(raw) != sent:
        beside = " outside shared memory" if sent < len(tensors) else ""
        raise Unfit(
            Reason.BAD_INPUT,
            f"raw_input_contents has {len(raw)} elements for {sent} inputs{beside}; send one for each",
        )
    headers, frames, contents = [], [], iter(raw)
    for tensor, span in zip(tensors, spans, strict=True):
        given = span if span is not None else next(contents, None)
        header, frame = _input(tensor, given, signature)
        headers.append(header)
        frames.append(frame)
    return Inputs(tuple(headers), frames)


def forms(outputs: Iterable[Message], signature: Signature) -> Forms:
    """Return how the outputs that a request names are to be sent; raise `Unfit`."""
    wanted = Forms({}, {})
    for output in outputs:
        if not output.parameters:
            continue
        given = parameters(output.parameters)
        count = whole(given.get(_CLASSIFICATION, 0))
        if isinstance(count, bool) or not isinstance(count, int):
            raise Unfit(
                Reason.BAD_OUTPUT,
                f"output {output.name!r} has classification {count!r}; it is a number of classes",
            )
        check_classes(signature, output.name, count)
        if count:
            wanted.classes[output.name] = count
        span = output_span(output.name, given, count)
        if span is not None:
            wanted.spans[output.name] = span
    return wanted


def _span(what: str, tensor: Message, reason: Reason) -> Span | None:
    """Return where a tensor is in shared memory; None if it is not there; raise `Unfit`."""
    return span_of(what, parameters(tensor.parameters), reason) if tensor.parameters else None


def _input(tensor: Message, raw: Any, signature: Signature) -> tuple[TensorHeader, Any]:
    """Return an input's header and bytes; no bytes if the header alone says that it can't be served.

    ``raw`` is its element of the raw contents, or where in shared memory it is; None without either.
    """
    name = tensor.name
    if len(tensor.shape) > _MOST_AXES:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name[:100]!r} has a shape of {len(tensor.shape):,} axes; at most {_MOST_AXES} are read",
        )
    shape = tuple(tensor.shape)
    index = signature.inputs.get(name)
    if index is None:
        return TensorHeader(name, tensor.datatype, shape), b""
    spec = signature.spec.inputs[index]
    header = TensorHeader(name, dtype_of(signature.spec.public_name, spec, tensor.datatype), shape)
    if not rows_of(signature, spec, shape):
        return header, b""
    if raw is not None and tensor.HasField("contents"):
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} has contents, and is in shared memory; send the one or the other",
        )
    if isinstance(raw, Span):
        return header, shared_input(spec, shape, raw)
    if raw is None and not tensor.HasField("contents") and math.prod(shape):
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} has no elements: send them in raw_input_contents, or in its contents",
        )
    if tensor.datatype == BYTES:
        return header, _slots(spec, tensor, raw, math.prod(shape))
    return header, packed(tensor, math.prod(shape)) if raw is None else raw


def _slots(spec: TensorSpec, tensor: Message, raw: Any, count: int) -> bytes:
    """Return the elements of a tensor of BYTES as the model takes them."""
    found = listed(tensor) if raw is None else datatypes.split(spec.name, raw, count)
    if len(found) != count:
        raise Unfit(
            Reason.BAD_INPUT, f"input {spec.name!r} has {len(found)} elements; its shape makes {count}"
        )
    slot = slot_bytes(spec.dtype)
    assert slot is not None
    return datatypes.to_slots(spec.name, found, slot)


FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Field of InferTensorContents that holds a datatype's elements; FP16 and BF16 have none."""

_WIDE = {"INT8": np.int32, "INT16": np.int32, "UINT8": np.uint32, "UINT16": np.uint32}
"""Dtypes in the fields of datatypes that are narrower than what protobuf has."""


def listed(tensor: Message) -> Sequence[bytes]:
    """Return the elements of an InferInputTensor of BYTES; raise `Unfit` if they stand in another field."""
    found: Sequence[bytes] = _field(tensor)
    return found


def packed(tensor: Message, count: int) -> bytes:
    """Return the ``count`` elements of an InferInputTensor of numbers as raw contents would have them.

    Raises `Unfit` if their number differs, if they stand in another datatype's field or do not fit theirs.
    """
    datatype, elements = tensor.datatype, _field(tensor)
    if len(elements) != count:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {tensor.name!r} has {len(elements):,} elements; its shape makes {count:,}",
        )
    array = np.array(elements, _WIDE.get(datatype) or DTYPES[datatype])
    return array.tobytes() if datatype not in _WIDE else _narrow(tensor.name, datatype, array)


def _field(tensor: Message) -> Any:
    name, datatype = tensor.name, tensor.datatype
    given = [field.name for field, _ in tensor.contents.ListFields()]
    wanted = FIELDS.get(datatype)
    if wanted is None:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} came as contents, and {datatype} has no field there: send its bytes in "
            "raw_input_contents",
        )
    if given not in ([wanted], []):
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} came in {' and '.join(given)}; elements of {datatype} stand in {wanted}",
        )
    return getattr(tensor.contents, wanted)


def _narrow(name: str, datatype: str, array: NDArray[Any]) -> bytes:
    limits = np.iinfo(DTYPES[datatype])
    wrong = np.flatnonzero((array < limits.min) | (array > limits.max))
    if wrong.size:
        raise Unfit(
            Reason.BAD_INPUT,
            f"element {wrong[0]} of input {name!r} is {array[wrong[0]]}; {datatype} goes from {limits.min} "
            f"to {limits.max}",
        )
    return array.astype(DTYPES[datatype]).tobytes()
