"""Descriptions of a model's sequences: a TOML file, or options of the command line."""

from __future__ import annotations

import shlex
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.sizes.sample_forms import NO_SAMPLES, Samples
from mainspring.messages.choices import did_you_mean
from mainspring.messages.sequences import KINDS, MOST_INITIAL_BYTES
from mainspring.messages.sequencing import Control, Sequencing, State

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

    def over(self, configured: Described) -> Described:
        """Return what it says, and what a model's configuration says of the rest."""
        return configured._replace(
            sequencing=self.sequencing or configured.sequencing,
            samples=self.samples or configured.samples,
            options=self.options,
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
