"""Parts of shared memory that stand for tensors, as requests name them. Pure.

A request says of an input, or of an output that it wants, ``shared_memory_region``, the name of a region
that its client has registered, ``shared_memory_byte_size`` and, unless it is 0, ``shared_memory_offset``. The
bytes there are those that the tensor would have as binary data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mainspring.gateway.core.validation import Signature, header_rows
from mainspring.gateway.oip import datatypes
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.json_data import whole
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec, item_bytes, slot_bytes
from mainspring.messages.peers import TensorHeader

REGION = "shared_memory_region"
BYTE_SIZE = "shared_memory_byte_size"
OFFSET = "shared_memory_offset"
_LENGTH_BYTES = 4
"""Bytes of the length before each element of BYTES."""


class RegionError(Unfit):
    """A request about a region that can't be met: a status and code of `oip.errors`, and why."""

    def __init__(self, status: tuple[int, str], detail: str, reason: Reason = Reason.BAD_INPUT) -> None:
        super().__init__(reason, detail)
        self.status, self.code = status


class Span(NamedTuple):
    """The place of a tensor in a region."""

    region: str
    offset: int
    """First byte, from the region's beginning."""
    size: int


class SharedInput(NamedTuple):
    """Stands for the bytes of an input until they are read."""

    span: Span
    spec: TensorSpec
    values: int
    """Elements that its shape makes."""

    def content(self, data: Any) -> Any:
        """Return what was read as the model takes it; raise `Unfit` for elements of BYTES that are none."""
        slot = slot_bytes(self.spec.dtype)
        if slot is None:
            return data
        return datatypes.to_slots(self.spec.name, datatypes.split(self.spec.name, data, self.values), slot)


def span_of(what: str, parameters: Mapping[str, Any], reason: Reason = Reason.BAD_INPUT) -> Span | None:
    """Return where parameters say that a tensor is; None if it is not in shared memory; raise `Unfit`.

    ``what`` is the tensor for a person, such as ``input 'data'``.
    """
    region = parameters.get(REGION)
    size, offset = parameters.get(BYTE_SIZE), parameters.get(OFFSET)
    if region is None:
        for name, value in ((BYTE_SIZE, size), (OFFSET, offset)):
            if value is not None:
                raise Unfit(reason, f"{what} has {name!r} without {REGION!r}: say which region it is in")
        return None
    if not isinstance(region, str):
        raise Unfit(reason, f"{what} has a {REGION} that is not a name")
    if size is None:
        raise Unfit(reason, f"{what} has {REGION!r} without {BYTE_SIZE!r}: say how many bytes it has there")
    return Span(
        region,
        _number(what, OFFSET, 0 if offset is None else offset, reason),
        _number(what, BYTE_SIZE, size, reason),
    )


def _number(what: str, name: str, value: Any, reason: Reason) -> int:
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        given = f"{what} has {name} {str(value)[:40]}"
        raise Unfit(reason, f"{given}; it is a number of bytes from 0 to {(1 << 63) - 1}")
    return value


def shared_input(spec: TensorSpec, shape: tuple[int, ...], span: Span) -> SharedInput:
    """Return an input in shared memory, of a shape that the model takes; raise `Unfit` for another size."""
    count, slot = math.prod(shape), slot_bytes(spec.dtype)
    if slot is None:
        wanted = count * item_bytes(spec.dtype)
        if span.size != wanted:
            raise Unfit(
                Reason.BAD_INPUT,
                f"input {spec.name!r} has {BYTE_SIZE} {span.size:,}; dtype {spec.dtype} and shape "
                f"{list(shape)} make {wanted:,}",
            )
    elif span.size > (most := count * (slot + _LENGTH_BYTES)):
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {spec.name!r} has {BYTE_SIZE} {span.size:,}; {count} elements of at most {slot} bytes, "
            f"each with its length before it, have {most:,}",
        )
    return SharedInput(span, spec, count)


def output_span(name: str, parameters: Mapping[str, Any], classes: int) -> Span | None:
    """Return where an output is to go in shared memory; None if it is to come with the answer; raise `Unfit`.

    ``classes`` are asked for of it. Like Triton, the server writes tensors there and no classes.
    """
    span = span_of(f"output {name!r}", parameters, Reason.BAD_OUTPUT)
    if span is not None and classes:
        raise Unfit(
            Reason.BAD_OUTPUT,
            f"output {name!r} can't set both 'shared_memory_region' and 'classification': take its classes "
            "from the answer",
        )
    return span


def check_room(signature: Signature, headers: tuple[TensorHeader, ...], outputs: Mapping[str, Span]) -> None:
    """Raise `Unfit` if an output has more bytes than its span, where that is known before the model runs.

    ``outputs`` are spans by the names of outputs.
    """
    spec = signature.spec
    if spec.symbols or not headers:
        return
    rows = header_rows(signature, headers)
    for name, span in outputs.items():
        index = signature.outputs.get(name)
        if index is None or spec.outputs[index].varies or slot_bytes(spec.outputs[index].dtype) is not None:
            continue
        wanted = rows * signature.output_row_bytes[index]
        if wanted > span.size:
            raise no_room(name, span, wanted)


def no_room(name: str, span: Span, wanted: int) -> Unfit:
    """Return what is wrong with an output that its span has no room for, in Triton's words."""
    return Unfit(
        Reason.BAD_OUTPUT,
        f"shared memory size specified with the request for output {name!r} ({span.size} bytes) should be at "
        f"least {wanted} bytes to hold the results",
    )
