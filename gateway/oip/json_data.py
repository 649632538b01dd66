"""A tensor's ``data`` in JSON (numbers, true and false, or text, flat or nested) to its bytes and back.

Beside what JSON has, ``NaN``, ``Infinity`` and ``-Infinity`` are read and written, as Triton does. Nothing is
allocated by what a shape promises: only what has come is decoded.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mainspring.gateway.oip import elements
from mainspring.gateway.oip.datatypes import Unfit, datatype_of
from mainspring.messages.codes import Reason
from mainspring.messages.model import slot_bytes

Data = msgspec.Raw | list[Any]
"""``data`` as it came: JSON that is yet to be decoded, or what the standard library made of it."""

_MAX_DEPTH = 32
_BRACKETS = re.compile(rb"(?:\s*\[)+")
_KINDS: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float, "S": str}
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)


def to_bytes(name: str, data: Data, dtype: str, count: int) -> bytes | memoryview:
    """Return ``count`` values as the tensor's bytes; raise `Unfit` for any other number or kind of them."""
    slot = slot_bytes(dtype)
    kind = "S" if slot else "f" if dtype == "bfloat16" else np.dtype(dtype).kind
    values = _flat(name, data, _KINDS[kind])
    if len(values) != count:
        raise Unfit(Reason.BAD_INPUT, f"input {name!r} has {len(values)} values; its shape makes {count}")
    if slot:
        try:
            return elements.to_slots(name, [value.encode() for value in values], slot)
        except UnicodeError as error:
            raise Unfit(Reason.BAD_INPUT, f"input {name!r} has text that is no Unicode: {error}") from None
    if kind == "f":
        return _floats(name, values, dtype).data.cast("B")
    if kind == "b":
        return np.array(values, np.bool_).data.cast("B")
    return _integers(name, values, dtype).data.cast("B")


def from_array(array: NDArray[Any]) -> list[Any] | msgspec.Raw:
    """Return numbers as the flat ``data`` of an output."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return msgspec.Raw(json.dumps(flat.tolist(), separators=(",", ":")).encode())
    values: list[Any] = flat.tolist()
    return values


def to_array(data: Any, dtype: str) -> NDArray[Any]:
    """Return a tensor's bytes as numbers, uncopied but for bfloat16, which becomes float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.dtype(dtype))


def _flat(name: str, data: Data, kind: type) -> list[Any]:
    """Return the values in their order, whatever they are nested in, if all rows are of one length."""
    try:
        if isinstance(data, list):
            depth = _depth(data)
            values: list[Any] = msgspec.convert(data, _nested(kind, depth))
        else:
            start = _BRACKETS.match(data)
            depth = start[0].count(b"[") if start else 1
            values = _decoder(kind, min(depth, _MAX_DEPTH)).decode(data)
    except _UNREADABLE as error:
        raise Unfit(Reason.BAD_INPUT, f"the data of input {name!r} can't be read: {error}") from None
    for _ in range(min(depth, _MAX_DEPTH) - 1):
        if len({len(row) for row in values}) > 1:
            raise Unfit(Reason.BAD_INPUT, f"the data of input {name!r} has rows of different lengths")
        values = list(itertools.chain.from_iterable(values))
    return values


def _depth(data: Any) -> int:
    depth = 0
    while isinstance(data, list) and depth < _MAX_DEPTH:
        depth += 1
        data = data[0] if data else None
    return depth


@functools.cache
def _nested(kind: type, depth: int) -> Any:
    nested: Any = kind
    for _ in range(depth):
        nested = list[nested]
    return nested


@functools.cache
def _decoder(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_nested(kind, depth))


def _floats(name: str, values: list[float], dtype: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        array = np.array(values, np.float32 if dtype == "bfloat16" else np.dtype(dtype))
    given = array
    if dtype == "bfloat16":
        array = _to_bfloat16(array)
        given = to_array(array.data, dtype)
    if not np.isfinite(given).all():
        too_large = np.isinf(given) & np.isfinite(np.array(values, np.float64))
        if too_large.any():
            raise _out_of_range(name, values[int(too_large.argmax())], dtype)
    return array


def _to_bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves of floats, rounded to the nearest, ties to even."""
    bits = array.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # A NaN's lower bits might carry over into an infinity.
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _integers(name: str, values: list[int], dtype: str) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    least, most = min(values, default=0), max(values, default=0)
    if least < limits.min or most > limits.max:
        raise _out_of_range(name, least if least < limits.min else most, dtype)
    return np.array(values, np.dtype(dtype))


def _out_of_range(name: str, value: float, dtype: str) -> Unfit:
    whole = isinstance(value, int)
    shown = "of many digits" if whole and abs(value) >= 1 << 99 else f"{value}" if whole else f"{value:.6g}"
    return Unfit(Reason.BAD_INPUT, f"input {name!r} has a value {shown}; {datatype_of(dtype)} can't hold it")
