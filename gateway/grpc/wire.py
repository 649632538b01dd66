"""Tensors in and out of encoded messages without a copy; protobuf itself would make two of each. Pure.

A message is a row of fields, each a tag and a value, and they may stand in any order. Tensors are the values
of one field number, so they are cut out of the bytes that came, and protobuf gets the small rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

RAW_INPUT_CONTENTS = 7
"""Field number in ModelInferRequest."""
RAW_OUTPUT_CONTENTS = 6
"""Field number in ModelInferResponse."""
INFER_RESPONSE = 2
"""Field number in ModelStreamInferResponse."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
MOST_FIELDS = 4_096
"""Most fields of one message: they take some 5 ms to read, and nobody else is served meanwhile."""


class Malformed(ValueError):
    """Bytes that do not make a message."""


def cut(message: bytes, number: int) -> tuple[bytes, list[memoryview]]:
    """Return a message without its fields of this number, which hold bytes, and their values, uncopied.

    Raises `Malformed` if a field ends behind the message, or if there are more than `MOST_FIELDS`; what is in
    the others is not read.
    """
    view = memoryview(message)
    kept: list[memoryview] = []
    values: list[memoryview] = []
    wanted = (number << 3) | _BYTES
    at, kept_from, end = 0, 0, len(message)
    fields = 0
    while at < end:
        fields += 1
        if fields > MOST_FIELDS:
            raise Malformed(f"it has more than {MOST_FIELDS:,} fields")
        tag, start = _varint(message, at)
        if tag == wanted:
            size, data = _varint(message, start)
            after = data + size
            values.append(view[data:after])
            if at > kept_from:
                kept.append(view[kept_from:at])
            kept_from = after
        else:
            after = _after(message, tag & 7, start)
        if after > end:
            raise Malformed(f"the field at byte {at} of {end:,} ends behind the message")
        at = after
    if not values:
        return message, values
    kept.append(view[kept_from:end])
    return b"".join(kept), values


def field(number: int, size: int) -> bytes:
    """Return what stands before ``size`` bytes that are the value of a field."""
    return _encoded((number << 3) | _BYTES) + _encoded(size)


def paste(message: bytes, number: int, values: Sequence[Any]) -> list[Any]:
    """Return the parts of a message with more fields of this number, uncopied."""
    parts: list[Any] = [message]
    for value in values:
        parts += (field(number, len(value)), value)
    return parts


def _encoded(value: int) -> bytes:
    head = bytearray()
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    head.append(value)
    return bytes(head)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at this byte, and where it ends."""
    value = shift = 0
    try:
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise Malformed(f"there is no number at byte {at}")
    except IndexError:
        raise Malformed(f"the message ends within a number, at byte {at}") from None


def _after(message: bytes, kind: int, start: int) -> int:
    """Return where a field's value ends that begins at ``start``."""
    if kind == _BYTES:
        size, data = _varint(message, start)
        return data + size
    if kind == _VARINT:
        return _varint(message, start)[1]
    if kind not in _FIXED_BYTES:
        raise Malformed(f"a field before byte {start} is of kind {kind}, which is none that proto3 has")
    return start + _FIXED_BYTES[kind]
