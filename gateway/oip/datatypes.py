"""The protocol's datatypes and ours: ``FP32`` is ``float32``, ``BYTES`` is slots of bytes such as ``S64``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.oip.steps import SLICE_BYTES, SLICE_VALUES
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec, too_long

BYTES = "BYTES"
REQUEST = "[request id: <id_unknown>] "
"""Beginning of Triton's text about one request. Its id is not known here."""

_DTYPES = {
    "BOOL": "bool",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
DTYPES: Mapping[str, str] = MappingProxyType(_DTYPES)
"""Dtype in `mainspring.messages.model` of each datatype of numbers."""
DATATYPES: Mapping[str, str] = MappingProxyType({dtype: name for name, dtype in _DTYPES.items()})
"""The same the other way round."""
Datatype = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*DTYPES, BYTES]})]
"""A datatype as it comes: what is none is refused by `dtype_of`, in words."""


class Unfit(BadRequest):
    """A request in the protocol's words that can't be served: a reason code, and what would be right."""

    def __init__(self, reason: Reason, detail: str, triton: str = "") -> None:
        """``triton``: what Triton says of it; empty if it has no sentence of its own."""
        super().__init__(reason, detail)
        self.triton = triton


class Withheld(Exception):
    """A request for what could be done and is switched off, said as Triton does: 503, UNAVAILABLE."""


class Unserved(Exception):
    """The protocol has what a request asks for, and this server has not; the text says what it is."""


def datatype_of(dtype: str) -> str:
    """Return the protocol's name of a dtype that `mainspring.messages.model.is_dtype` knows."""
    return DATATYPES.get(dtype, BYTES)


def dtype_of(model: str, tensor: TensorSpec, datatype: str) -> str:
    """Return the dtype of a tensor that came with ``datatype``; raise `Unfit` if the model takes another."""
    wanted = DATATYPES.get(tensor.dtype, BYTES)
    if datatype != wanted:
        known = "" if datatype in DTYPES or datatype == BYTES else ", which is not a datatype"
        detail = f"input {tensor.name!r} came as {datatype[:40]!r}{known}; model {model!r} takes {wanted}"
        if datatype == BYTES:
            detail += ", and has no slots for BYTES there"
        triton = (
            f"inference input '{tensor.name}' data-type is '{datatype[:40]}', but model '{model}' expects "
        )
        raise Unfit(Reason.BAD_INPUT, detail, f"{REQUEST}{triton}'{wanted}'")
    return tensor.dtype


_LENGTH = struct.Struct("<I")


def split(name: str, data: Any, count: int) -> list[bytes]:
    """Return the ``count`` elements of a BYTES tensor as they came; raise `Unfit` if it has more or fewer."""
    elements: list[bytes] = []
    view = memoryview(data)
    offset, end = 0, view.nbytes
    while offset < end and len(elements) < count:
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(view, offset)[0] if start <= end else end + 1
        if offset > end:
            raise Unfit(
                Reason.BAD_INPUT,
                f"element {len(elements)} of input {name!r} ends behind the tensor's {end:,} bytes; each "
                "element is its length in four little-endian bytes, then that number of bytes",
            )
        elements.append(bytes(view[start:offset]))
    if len(elements) < count or offset < end:
        more = f"{end - offset:,} more bytes" if offset < end else f"{len(elements)} elements only"
        raise Unfit(Reason.BAD_INPUT, f"input {name!r} has {more}; its shape makes {count} elements")
    return elements


def join(elements: Sequence[bytes]) -> bytes:
    """Return elements as a BYTES tensor on the wire."""
    return b"".join([part for element in elements for part in (_LENGTH.pack(len(element)), element)])


def to_slots(name: str, elements: Sequence[bytes], slot_bytes: int) -> bytes:
    """Return elements in slots of ``slot_bytes`` each; raise `Unfit` if one does not fit."""
    for index, element in enumerate(elements):
        if len(element) > slot_bytes:
            why = too_long(len(element), slot_bytes)
            raise Unfit(Reason.BAD_INPUT, f"element {index} of input {name!r} {why}")
        if element.endswith(b"\0"):
            raise Unfit(
                Reason.BAD_INPUT,
                f"element {index} of input {name!r} ends with a zero byte, which the model's slots of "
                f"{slot_bytes:,} bytes are padded with; send it without",
            )
    return b"".join([element.ljust(slot_bytes, b"\0") for element in elements])


def from_slots(data: Any, slot_bytes: int) -> Iterator[list[bytes]]:
    """Yield the elements in slots of ``slot_bytes`` each, without their padding, some at a time."""
    view = memoryview(data)
    size = slot_bytes * max(1, min(SLICE_VALUES, SLICE_BYTES // slot_bytes))
    for start in range(0, len(view), size):
        content = bytes(view[start : start + size])
        yield [content[at : at + slot_bytes].rstrip(b"\0") for at in range(0, len(content), slot_bytes)]
