"""Arrays and Python numbers to tensors on the wire, and tensors back to arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mainspring.client.errors import MainspringError, kind_of
from mainspring.client.result import InferResult, seen_by_caller
from mainspring.messages.clients import InferReply
from mainspring.messages.model import array_dtype, slot_bytes, too_long
from mainspring.messages.peers import TensorHeader

_LITTLE_ENDIAN = sys.byteorder == "little"
_NOT_NUMBERS = "OSUMm"
"""numpy's kinds that hold no numbers: objects, bytes, text, dates."""


def to_tensors(
    inputs: Mapping[str, ArrayLike], dtypes: Mapping[str, str] = MappingProxyType({})
) -> tuple[tuple[TensorHeader, ...], list[memoryview]]:
    """Return headers and frames for a request's inputs.

    Takes arrays and everything that `numpy.asarray` accepts; Python lists and numbers, and texts, become the
    type that ``dtypes`` says for their input; numbers of an input without one what numpy makes of them. What
    is contiguous and little-endian already is not copied. Raises TypeError for anything else.
    """
    check_mapping(inputs)
    headers, frames = [], []
    for name, value in inputs.items():
        if name in dtypes and is_plain(value):
            array = np.ascontiguousarray(cast_plain(name, value, dtypes[name]))
        else:
            array = to_array(name, value)
        dtype = array.dtype.str[1:] if array.dtype.kind == "S" else array.dtype.name
        headers.append(TensorHeader(name, dtype, array.shape))
        frames.append(array.reshape(-1).view(np.uint8).data)
    return tuple(headers), frames


def check_mapping(inputs: Mapping[str, ArrayLike]) -> None:
    """Raise TypeError if a request's inputs are not a mapping from names."""
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs is {kind_of(inputs)}; pass a dict from input name to array, like {{'data': x}}"
        )
    for name in inputs:
        if not isinstance(name, str):
            raise TypeError(f"input name {name!r} is {kind_of(name)}; pass a str")


def to_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return ``value`` as a contiguous little-endian array of at least one axis; raise TypeError."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"input {name!r} can't be made an array ({error}); pass a numpy array") from None
    if array.dtype.kind in _NOT_NUMBERS or array.dtype.names is not None:
        raise TypeError(
            f"input {name!r} is {kind_of(value)} that makes an array of {array.dtype}; "
            "pass a numpy array of numbers, or texts to a model that takes them"
        )
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE_ENDIAN):
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array)


def from_reply(reply: InferReply, frames: list[Any], elapsed_ns: int, slo_ns: int | None) -> InferResult:
    """Return the outputs as arrays over the frames' own memory, read-only; raise `MainspringError`.

    ``elapsed_ns`` is the time since the call, ``slo_ns`` what the caller gave.
    """
    try:
        outputs = {
            header.name: _from_frame(header, frame)
            for header, frame in zip(reply.outputs, frames, strict=True)
        }
    except (ValueError, TypeError) as error:
        raise MainspringError(
            f"the gateway's reply can't be read ({error}); is it of this version?"
        ) from None
    return InferResult(outputs, seen_by_caller(reply.timing, elapsed_ns, slo_ns))


def _from_frame(header: TensorHeader, frame: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(frame, dtype=array_dtype(header.dtype)).reshape(header.shape)
    if not array.flags.aligned:
        # Small frames lie anywhere in the receive buffer; some libraries take aligned arrays only.
        array = array.copy()
    array.flags.writeable = False
    return array


_NUMBERS = "biuf"
_TEXTS = "OSU"
_BFLOAT16 = "bfloat16"


def is_plain(value: object) -> bool:
    """Return whether a value has no tensor type of its own: a Python list, tuple or number, or texts."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in _TEXTS
    return isinstance(value, list | tuple | bool | int | float | str | bytes)


def cast_plain(name: str, value: object, dtype: str) -> NDArray[Any]:
    """Return Python numbers or texts, in lists or alone, as an array of ``dtype``.

    Real numbers are rounded to the nearest one of the type; whole numbers and truth values must be kept as
    they are. Texts are written in UTF-8. Raises TypeError if they don't fit.
    """
    slot = slot_bytes(dtype)
    if slot is not None:
        return _to_slots(name, value, slot)
    wanted = array_dtype(dtype)
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(f"input {name!r} can't be made an array ({error}); pass a numpy array") from None
    if given.size == 0 and given.dtype == np.float64:
        return given.astype(wanted)
    if wanted.name == _BFLOAT16:
        # What numpy can compare with, if not as exact as the other.
        return cast_plain(name, value, "float32").astype(wanted)
    if given.dtype.kind not in _NUMBERS or wanted.kind not in _NUMBERS:
        raise TypeError(
            f"input {name!r} is {kind_of(value)} that makes an array of {given.dtype}, and the model "
            f"takes {dtype}; pass a numpy array of numbers"
        )
    with np.errstate(all="ignore"):
        cast = given.astype(wanted)
        kept = _kept(given, cast)
    if kept is not True:
        raise TypeError(
            f"input {name!r} holds {kept}, which {dtype}, the model's type, can't hold; "
            f"pass numbers that it can, or a numpy array of {dtype}"
        )
    return cast


def _to_slots(name: str, value: object, slot: int) -> NDArray[Any]:
    """Return texts, of Python's or numpy's, in slots of so many bytes."""
    try:
        # Numpy's own texts end before their last zeros, which is where the slots' end, too.
        texts = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, object)
    except ValueError as error:
        raise TypeError(
            f"input {name!r} can't be made an array ({error}); pass lists of one length"
        ) from None
    contents = []
    for each in texts.reshape(-1).tolist():
        if not isinstance(each, str | bytes):
            raise TypeError(f"input {name!r} holds {kind_of(each)}; the model takes texts: str or bytes")
        content = each.encode() if isinstance(each, str) else each
        if len(content) > slot or content.endswith(b"\0"):
            wrong = "ends with a zero byte, which shorter ones are filled with; send it without"
            wrong = too_long(len(content), slot) if len(content) > slot else wrong
            raise TypeError(f"a text of input {name!r} {wrong}")
        contents.append(content)
    return np.array(contents, f"S{slot}").reshape(texts.shape)


def _kept(given: NDArray[Any], cast: NDArray[Any]) -> Any:
    """Return True if an array holds what it is to, else the first number that it does not hold."""
    if cast.dtype.kind == "f":
        # Beyond the largest number of the type; a whole number beyond what it counts in ones.
        lost = np.isfinite(given) & ~np.isfinite(cast)
        if given.dtype.kind in "iu":
            lost |= cast.astype(np.float64) != given
    elif given.dtype.kind == "f":
        lost = ~np.isfinite(given) | (cast.astype(np.float64) != given)
    else:
        lost = cast.astype(object) != given.astype(object)
    lost = np.asarray(lost)
    return given[lost].reshape(-1)[0] if lost.any() else True
