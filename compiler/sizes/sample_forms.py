"""Forms of made-up samples, and what a user says instead: samples, and descriptions of a model's sequences.

The samples that compile makes up are words and numbers of all sizes. A model may take none of them. Then
others are tried (numbers as texts, dates, what is sorted), each form for all inputs. What the operator gives
as samples takes the place of all.
"""

from __future__ import annotations

import shlex
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import is_text, tiled
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading.operator_libraries import in_use
from mainspring.compiler.sizes.samples import WORDS, draw
from mainspring.messages.choices import did_you_mean
from mainspring.messages.model import TensorSpec, array_dtype
from mainspring.messages.sequences import KINDS, MOST_INITIAL_BYTES
from mainspring.messages.sequencing import Control, Sequencing, State

Array = npt.NDArray[np.generic]
Samples = Mapping[str, Array]
"""Rows of inputs by name, or single rows without an axis for them."""

NO_SAMPLES: Samples = {}
HINT = (
    "words, numbers, dates and sorted values were tried as samples; give some that it takes, with "
    "`--sample FILE.npz` (an array for each input) or as model_warmup in config.pbtxt; or have it served "
    "unverified, on your word, with `--unverified` (in config.pbtxt the parameter unverified: true)"
)
LETTERS = (b"a", b"b", b"c")
"""The shortest texts: where a model joins even these to longer ones than fit, its inputs are too large."""
_TEXTS: Mapping[str, tuple[bytes, ...]] = {
    "letters": LETTERS,
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

    @property
    def shortens(self) -> bool:
        """Return whether a form with shorter texts follows."""
        return not self.given and self.texts != LETTERS

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


_LONGEST_S = 1e9
_STATE_KEYS = ("output", "initial", "dims", "shown")


class Described(NamedTuple):
    """The content of a description."""

    sequencing: Sequencing | None = None
    options: str = ""
    """The options of the command line that say it again, each after a space."""
    samples: Samples = NO_SAMPLES
    """Rows that the model takes."""
    optional: tuple[str, ...] = ()
    """Inputs that requests may leave out, for which the model has a default."""
    libraries: tuple[Path, ...] = ()
    """Libraries of operators that the model's configuration names: they run only where they are allowed."""
    unverified: bool = False
    """True if the model is stored even where it runs on no sample, on the operator's word."""

    def over(self, configured: Described) -> Described:
        """Return what it says, and what a model's configuration says of the rest."""
        return configured._replace(
            sequencing=self.sequencing or configured.sequencing,
            samples=self.samples or configured.samples,
            options=self.options,
            unverified=self.unverified or configured.unverified,
        )


NOTHING = Described()


def with_samples(said: Described, file: Path | None) -> Described:
    """Return what was described with the samples in an ``.npz`` file; raise `CompileError`."""
    if file is None:
        return said
    try:
        with np.load(file, allow_pickle=False) as arrays:
            samples = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise CompileError(
            f"the samples {file} can't be read ({error}); numpy.savez writes such a file, with an array for "
            "each input (texts as an array of a str or bytes type, not of objects)"
        ) from None
    options = f"{said.options} --sample {shlex.quote(str(file.resolve()))}"
    return said._replace(samples=samples, options=options)


def on_word(said: Described, *, unverified: bool) -> Described:
    """Return what was described with the operator's word for a model that runs on no sample."""
    return said._replace(unverified=True, options=f"{said.options} --unverified") if unverified else said


def described(file: Path | None, states: Iterable[str] = ()) -> Described:
    """Return what a file and texts such as ``h=h_out`` say; raise `CompileError` for what makes no sense."""
    listed = list(states)
    pairs = [_pair(text) for text in listed]
    found = Sequencing(tuple(pairs)) if pairs else None
    options = "".join(f" --state {shlex.quote(text)}" for text in listed)
    if file is None:
        return Described(found, options)
    read = _read(file)
    sequencing = Sequencing((*pairs, *read.states), read.controls, read.idle_ns)
    return Described(sequencing, f"{options} --description {shlex.quote(str(file.resolve()))}")


def _pair(text: str) -> State:
    fed, _, taken = text.rpartition("=")
    if not fed or not taken:
        raise CompileError(f"state {text!r} isn't an input and the output that it is taken from, as h=h_out")
    return State(fed, taken)


def _read(path: Path) -> Sequencing:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompileError(f"the description {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CompileError(f"the description {path} is not TOML: {error}") from None
    _check_keys(path, "", table, ("state", "sequence"))
    states = _table(path, "state", table)
    sequence = _table(path, "sequence", table)
    _check_keys(path, "sequence.", sequence, ("idle_s", *KINDS))
    return Sequencing(
        tuple([_state(path, name, _table(path, name, states)) for name in states]),
        tuple(
            [Control(_text(path, f"sequence.{kind}", sequence), kind) for kind in KINDS if kind in sequence]
        ),
        _idle_ns(path, sequence),
    )


def _state(path: Path, name: str, table: Mapping[str, Any]) -> State:
    where = f"state.{name}"
    _check_keys(path, f"{where}.", table, _STATE_KEYS)
    dims = table.get("dims")
    whole = isinstance(dims, list) and all(type(size) is int and size >= 0 for size in dims)
    if dims is not None and not whole:
        raise CompileError(f"{path}: {where}.dims is {dims!r}; it is a list of sizes, such as [2, 64]")
    shown = table.get("shown", False)
    if not isinstance(shown, bool):
        raise CompileError(f"{path}: {where}.shown is {shown!r}; it is true or false")
    initial = b""
    if "initial" in table:
        initial = initial_state(path.parent / _text(path, f"{where}.initial", table))
    return State(
        name, _text(path, f"{where}.output", table), None if dims is None else tuple(dims), initial, shown
    )


def initial_state(path: Path) -> bytes:
    """Return the bytes of an initial state; raise `CompileError`."""
    try:
        if path.stat().st_size > MOST_INITIAL_BYTES:
            raise CompileError(f"the initial state {path} has more than {MOST_INITIAL_BYTES:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise CompileError(f"the initial state {path} can't be read: {error.strerror}") from None
    if not data:
        raise CompileError(f"the initial state {path} is empty; leave it out for zeros")
    return data


def _idle_ns(path: Path, sequence: Mapping[str, Any]) -> int | None:
    idle_s = sequence.get("idle_s")
    if idle_s is None:
        return None
    if isinstance(idle_s, bool) or not isinstance(idle_s, int | float) or not 0 < idle_s < _LONGEST_S:
        raise CompileError(f"{path}: sequence.idle_s is {idle_s!r}; it is a number of seconds, such as 10")
    return max(1, round(idle_s * 1e9))


def _table(path: Path, key: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise CompileError(f"{path}: {key} is {found!r}; it is a table")
    return found


def _text(path: Path, place: str, table: Mapping[str, Any]) -> str:
    found = table.get(place.rpartition(".")[2])
    if not isinstance(found, str) or not found:
        given = "missing" if found is None else repr(found)
        raise CompileError(f"{path}: {place} is {given}; it is a text")
    return found


def _check_keys(path: Path, where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known, f"known are {', '.join(known)}")
            raise CompileError(f"{path}: there is no key {where}{key}{hint}")
