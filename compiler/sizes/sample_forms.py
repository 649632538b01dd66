"""Forms of made-up samples, for models that run on few values: numbers as texts, dates, what is sorted.

The samples that compile makes up are words and numbers of all sizes. A model may take none of them. Then
others are tried, each form for all inputs. What the operator gives as samples takes the place of all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import is_text, tiled
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading.operator_libraries import in_use
from mainspring.compiler.sizes.samples import WORDS, draw
from mainspring.messages.model import TensorSpec, array_dtype

Array = npt.NDArray[np.generic]
Samples = Mapping[str, Array]
"""Rows of inputs by name, or single rows without an axis for them."""

NO_SAMPLES: Samples = {}
HINT = (
    "words, numbers, dates and sorted values were tried as samples; give some that it takes, with "
    "`--sample FILE.npz` (an array for each input) or as model_warmup in config.pbtxt"
)
_TEXTS: Mapping[str, tuple[bytes, ...]] = {
    "whole numbers": (b"0", b"7", b"-3", b"42", b"1000"),
    "decimal numbers": (b"0.5", b"-1.25", b"3.0", b"1e3", b"0"),
    "dates": (b"2024-02-29", b"1999-12-31", b"2026-01-01"),
    "instants": (b"2024-02-29T12:30:00Z", b"1999-12-31T23:59:59Z"),
    "truth values": (b"true", b"false"),
    "objects": (b'{"a": 1}', b"{}"),
    "nothing": (b"",),
}
_PICTURE = "picture"
_SIDE = 4
_NUMBERS = ("whole", "positive", "part", "rising", "one", "zero")


class Form(NamedTuple):
    """The form of samples."""

    texts: tuple[bytes, ...] = ()
    """Texts that samples are drawn from; none: from those that the model knows, and from words."""
    numbers: str = ""
    """One of `_NUMBERS`, or `_PICTURE`; empty: drawn as they come."""
    given: Samples = NO_SAMPLES
    """Samples of the operator's."""

    def draw(
        self,
        inputs: Sequence[TensorSpec],
        limits: Sequence[int],
        rows: int,
        texts: Sequence[bytes] = WORDS,
        most_scale: float = 4.0,
    ) -> list[Array]:
        """Return rows as `samples.draw` does, in this form."""
        longest = max((array_dtype(spec.dtype).itemsize for spec in inputs if is_text(spec.dtype)), default=0)
        known = [text for text in self.texts if len(text) <= longest] or texts
        drawn = draw(inputs, limits, rows, known, most_scale)
        arrays = [_as(array, self.numbers) for array in drawn]
        return [
            _given(self.given[spec.name], spec, rows) if spec.name in self.given else array
            for spec, array in zip(inputs, arrays, strict=True)
        ]


def forms(inputs: Sequence[TensorSpec], known: Sequence[bytes], given: Samples) -> Iterator[Form]:
    """Yield the forms to try; ``known`` are texts that the graph knows. Raises `CompileError`."""
    if given:
        _check(inputs, given)
        yield Form(given=given)
        return
    if in_use().libraries and any(spec.dtype == "uint8" and len(spec.shape) <= 1 for spec in inputs):
        # Before any bytes: decoders of pictures end the whole process on some.
        yield Form(numbers=_PICTURE)
    yield Form()
    kinds = {array_dtype(spec.dtype).kind for spec in inputs}
    texts = [tuple(known), *_TEXTS.values()] if "S" in kinds else []
    yield from (Form(texts=each) for each in texts if each)
    if kinds - {"S", "b"}:
        yield from (Form(numbers=each) for each in _NUMBERS)


def _check(inputs: Sequence[TensorSpec], given: Samples) -> None:
    names = [spec.name for spec in inputs]
    for name in given:
        if name not in names:
            raise CompileError(f"a sample is of {name!r}, and the model has the inputs {', '.join(names)}")
    for spec in inputs:
        if spec.name in given:
            _given(given[spec.name], spec, 1)


def _given(sample: Array, spec: TensorSpec, rows: int) -> Array:
    """Return rows of a sample, repeated and cut to the shape; raise `CompileError` for another kind."""
    dtype, rank = array_dtype(spec.dtype), len(spec.shape)
    array = np.char.encode(sample.astype(str), "utf-8") if sample.dtype.kind in "UO" else sample
    array = array[None] if array.ndim == rank else array
    if array.ndim != rank + 1 or not array.size:
        raise CompileError(
            f"the sample of input {spec.name!r} has the shape {list(sample.shape)}, and a row of the input "
            f"has {list(spec.shape)}: give one such array, or several with an axis in front"
        )
    text = dtype.kind == "S"
    if (array.dtype.kind == "S") != text or (text and _longest(array) > dtype.itemsize):
        raise CompileError(f"the sample of input {spec.name!r} is {sample.dtype}, and the input {spec.dtype}")
    return tiled(array, (rows, *spec.shape)).astype(dtype)


def _longest(texts: Array) -> int:
    return max(map(len, texts.reshape(-1).tolist()), default=0)


def _picture(seed: int) -> bytes:
    """Return a small PNG, as long for each seed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = np.random.default_rng(seed).integers(0, 256, (_SIDE, 3 * _SIDE), np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines, 0)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _pictures(array: Array) -> Array:
    """Return bytes, rows along the first axis, each of them a picture, behind which decoders read nothing."""
    if array.dtype != np.uint8 or array.ndim > 2:
        return array
    found = np.zeros_like(array).reshape(len(array), -1)
    for row, line in enumerate(found):
        picture = np.frombuffer(_picture(row), np.uint8)[: len(line)]
        line[: len(picture)] = picture
    return found.reshape(array.shape)


def _as(array: Array, form: str) -> Array:
    """Return numbers in one of the forms."""
    if form == _PICTURE:
        return _pictures(array)
    if not form or array.dtype.kind in "Sb" or not array.size:
        return array
    wide = array.astype(np.float64)
    match form:
        case "whole":
            found = np.floor(np.abs(wide)) % 3
        case "positive":
            found = np.abs(wide) + 1
        case "part":
            found = np.abs(wide) % 1
        case "rising":
            found = np.sort(wide, axis=-1) if array.ndim > 1 else wide
        case _:
            found = np.full_like(wide, form == "one")
    return found.astype(array.dtype)
