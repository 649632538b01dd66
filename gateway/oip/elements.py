"""BYTES elements: on the wire each is its length, in four little-endian bytes, and its content.

A model's tensor holds them in slots of one size, each padded with zero bytes. So an element may be as long
as a slot at most, and zero bytes at its end are not told from padding: they are refused rather than lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.steps import SLICE_BYTES, SLICE_VALUES
from mainspring.messages.codes import Reason
from mainspring.messages.model import too_long

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
