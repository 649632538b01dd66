"""A ModelInferRequest as the request table takes it. Pure.

Names, shapes and sizes are checked where all protocols check them, by `gateway.core.validation`; here only
what that needs is made of the message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mainspring.gateway.core.validation import Signature, rows_of
from mainspring.gateway.grpc import contents
from mainspring.gateway.grpc.messages import Message, ModelInferRequest, decode
from mainspring.gateway.grpc.status import NotServed
from mainspring.gateway.grpc.wire import RAW_INPUT_CONTENTS, Malformed, cut
from mainspring.gateway.oip import elements
from mainspring.gateway.oip.classification import check_classes
from mainspring.gateway.oip.datatypes import BYTES, Unfit, dtype_of
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec, slot_bytes
from mainspring.messages.peers import TensorHeader

_COPIED_BYTES = 8_192
"""Up to here protobuf copies tensors faster than they can be cut out."""
MOST_BESIDE_BYTES = 16 << 20
"""Of a message without its raw contents: protobuf reads it while nobody else is served."""
_MOST_AXES = 64
_MOST_PARAMETERS = 1_024
_SHARED = "shared_memory_region"
_CLASSIFICATION = "classification"


class Inputs(NamedTuple):
    """What a request brings, without its deadline."""

    headers: tuple[TensorHeader, ...]
    frames: list[Any]
    """A bytes-like for each input."""


def parse(data: bytes) -> tuple[Message, list[Any]]:
    """Return a ModelInferRequest without its raw contents, and these, uncopied if they are large.

    Raises `Unfit` for bytes that are not such a message.
    """
    if len(data) <= _COPIED_BYTES:
        message = decode(ModelInferRequest, data)
        return message, list(message.raw_input_contents)
    try:
        rest, raw = cut(data, RAW_INPUT_CONTENTS)
    except Malformed as error:
        raise Unfit(
            Reason.BAD_MESSAGE, f"these {len(data):,} bytes are not a ModelInferRequest: {error}"
        ) from None
    if len(rest) > MOST_BESIDE_BYTES:
        raise Unfit(
            Reason.BAD_MESSAGE,
            f"the request has {len(rest):,} bytes beside raw_input_contents, and may have "
            f"{MOST_BESIDE_BYTES:,}; send large tensors there",
        )
    return decode(ModelInferRequest, rest), raw


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
    """Return a request's inputs for the model that it names; raise `Unfit` or `NotServed`."""
    tensors = message.inputs
    if raw and len(raw) != len(tensors):
        raise Unfit(
            Reason.BAD_INPUT,
            f"raw_input_contents has {len(raw)} elements for {len(tensors)} inputs; send one for each",
        )
    headers, frames = [], []
    for index, tensor in enumerate(tensors):
        header, frame = _input(tensor, raw[index] if raw else None, signature)
        headers.append(header)
        frames.append(frame)
    return Inputs(tuple(headers), frames)


def classes(outputs: Iterable[Message], signature: Signature) -> dict[str, int]:
    """Return for each output of a model that is to be classified how many classes are wanted.

    Raises `Unfit` or `NotServed`.
    """
    wanted = {}
    for output in outputs:
        if not output.parameters:
            continue
        given = parameters(output.parameters)
        if _SHARED in given:
            raise NotServed(f"output {output.name!r} is to go to shared memory", "answers have raw contents")
        count = given.get(_CLASSIFICATION, 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise Unfit(
                Reason.BAD_OUTPUT,
                f"output {output.name!r} has classification {count!r}; it is a number of classes",
            )
        check_classes(signature, output.name, count)
        if count:
            wanted[output.name] = count
    return wanted


def _input(tensor: Message, raw: Any, signature: Signature) -> tuple[TensorHeader, Any]:
    """Return an input's header and bytes; no bytes if the header alone says that it can't be served."""
    name = tensor.name
    if len(tensor.shape) > _MOST_AXES:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name[:100]!r} has a shape of {len(tensor.shape):,} axes; at most {_MOST_AXES} are read",
        )
    shape = tuple(tensor.shape)
    if tensor.parameters and _SHARED in tensor.parameters:
        raise NotServed(f"input {name!r} is in shared memory", "send it in raw_input_contents")
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
            f"input {name!r} has contents, and the request raw_input_contents; send the one or the other",
        )
    if raw is None and not tensor.HasField("contents") and math.prod(shape):
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} has no elements: send them in raw_input_contents, or in its contents",
        )
    if tensor.datatype == BYTES:
        return header, _slots(spec, tensor, raw, math.prod(shape))
    return header, contents.packed(tensor, math.prod(shape)) if raw is None else raw


def _slots(spec: TensorSpec, tensor: Message, raw: Any, count: int) -> bytes:
    """Return the elements of a tensor of BYTES as the model takes them."""
    found = contents.listed(tensor) if raw is None else elements.split(spec.name, raw, count)
    if len(found) != count:
        raise Unfit(
            Reason.BAD_INPUT, f"input {spec.name!r} has {len(found)} elements; its shape makes {count}"
        )
    slot = slot_bytes(spec.dtype)
    assert slot is not None
    return elements.to_slots(spec.name, found, slot)
