"""The content of ``model.toml``: a Python model's tensors, rows, batch sizes, memory and time."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import MOST_ROWS, IoTensor
from mainspring.compiler.sizes.forms import Range, short_ladder
from mainspring.messages.choices import one_of
from mainspring.messages.model import (
    DTYPES,
    MOST_BUCKETS,
    MOST_TEXT_BYTES,
    MOST_VARYING,
    TEXT_BYTES,
    OpenDim,
    Symbol,
    Term,
)

BYTES = "bytes"
MOST_BYTES = 16 * MOST_TEXT_BYTES
"""The largest ``most_bytes``: a photograph."""
INDEPENDENT, DEPENDENT, OWN = "independent", "dependent", "own"
ROWS = (INDEPENDENT, DEPENDENT, OWN)
"""Answers to whether a batch may have rows of several requests; `OWN`: there is no axis of rows."""
_KEYS: dict[str, tuple[type, ...]] = {
    "rows": (str,),
    "inputs": (list,),
    "outputs": (list,),
    "batch_sizes": (list,),
    "most": (dict,),
    "memory_mb": (int,),
    "timeout_ms": (int, float),
    "start_s": (int, float),
}
_TENSOR_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "dtype": (str,),
    "shape": (list,),
    "most_bytes": (int,),
}
_WORDS: dict[type, str] = {
    str: "a text",
    list: "a list",
    dict: "a table",
    int: "a whole number",
    float: "a number",
}
_LEAST = {"memory_mb": 32, "timeout_ms": 1, "start_s": 0.1}
_MOST = {"memory_mb": 1 << 20, "timeout_ms": 600_000, "start_s": 600}


class Description(msgspec.Struct, frozen=True):
    """The content of ``model.toml``."""

    rows: str
    """One of `ROWS`."""
    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]
    batch_sizes: tuple[int, ...] = (1,)
    symbols: tuple[Symbol, ...] = ()
    """The sizes that shapes name, with their limits."""
    memory_bytes: int = 512 << 20
    timeout_ns: int = 0
    start_ns: int = 30_000_000_000


def read_description(text: str) -> Description:
    """Return what a ``model.toml`` says; raise `CompileError` that names the key and what would be right."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CompileError(f"model.toml is not TOML: {error}") from None
    _check_keys(given, _KEYS, "model.toml")
    for key in ("rows", "inputs", "outputs"):
        if key not in given:
            raise CompileError(f"model.toml lacks {key!r}: it names rows, [[inputs]] and [[outputs]]")
    if given["rows"] not in ROWS:
        raise CompileError(
            f"rows is {given['rows']!r} in model.toml and none of {one_of(given['rows'], ROWS)}"
        )
    symbols = _symbols(given.get("most", {}))
    inputs = _tensors(given, "inputs", symbols)
    outputs = _tensors(given, "outputs", symbols)
    _check_names(inputs, outputs, symbols)
    sizes = _batch_sizes(given, outputs)
    numbers = {key: _number(given, key) for key in _LEAST if key in given}
    return Description(
        given["rows"],
        inputs,
        outputs,
        sizes,
        symbols,
        round(numbers.get("memory_mb", 512)) << 20,
        round(numbers.get("timeout_ms", 0) * 1e6),
        round(numbers.get("start_s", 30) * 1e9),
    )


def _check_keys(given: Mapping[str, Any], known: Mapping[str, tuple[type, ...]], where: str) -> None:
    for key, value in given.items():
        if key not in known:
            raise CompileError(f"{where} has the key {key!r} and knows only {one_of(key, known)}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise CompileError(f"{key} in {where} is {value!r}; it has to be {_WORDS[known[key][-1]]}")


def _number(given: Mapping[str, Any], key: str) -> float:
    value, least, most = float(given[key]), _LEAST[key], _MOST[key]
    if not least <= value <= most:
        raise CompileError(f"{key} is {given[key]} in model.toml; it has to be from {least:g} to {most:,}")
    return value


def _symbols(most: Mapping[str, Any]) -> tuple[Symbol, ...]:
    room = max(1, math.floor(MOST_BUCKETS ** (1 / max(len(most), 1))))
    found = []
    for name, limit in most.items():
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 1 << 24:
            raise CompileError(f"most.{name} is {limit!r} in model.toml; it has to be from 1 to {1 << 24:,}")
        found.append(Symbol(name, short_ladder(Range(1, 1, limit), room)))
    return tuple(found)


def _tensors(given: Mapping[str, Any], kind: str, symbols: Sequence[Symbol]) -> tuple[IoTensor, ...]:
    if not given[kind]:
        raise CompileError(f"model.toml names no [[{kind}]]")
    return tuple(_tensor(each, kind, symbols) for each in given[kind])


def _tensor(given: Any, kind: str, symbols: Sequence[Symbol]) -> IoTensor:
    if not isinstance(given, dict):
        raise CompileError(f"{kind} in model.toml holds {given!r}; each is a table, [[{kind}]]")
    _check_keys(given, _TENSOR_KEYS, f"a table of [[{kind}]]")
    for key in ("name", "dtype", "shape"):
        if key not in given:
            raise CompileError(f"a table of [[{kind}]] in model.toml lacks {key!r}")
    name, named = given["name"], [each.name for each in symbols]
    sizes, opened, varies = [], [], []
    for axis, size in enumerate(given["shape"]):
        if (
            isinstance(size, str)
            and size.startswith("<=")
            and size[2:].strip().isdecimal()
            and kind == "outputs"
        ):
            varies.append(axis)
            sizes.append(int(size[2:]))
        elif isinstance(size, str) and size in named:
            index = named.index(size)
            opened.append(OpenDim(axis, (Term(index),)))
            sizes.append(symbols[index].limit)
        elif isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            sizes.append(size)
        else:
            varying = ', or in outputs "<=N"' if kind == "outputs" else ""
            raise CompileError(
                f"the shape of {name!r} in model.toml has {size!r}: a dimension is a number or a name that "
                f"[most] gives a limit{varying}"
            )
    if len(varies) > MOST_VARYING:
        raise CompileError(
            f"{name!r} in model.toml varies along {len(varies)} axes; at most {MOST_VARYING} may"
        )
    return IoTensor(name, _dtype(given), tuple(sizes), tuple(opened), tuple(varies))


def _dtype(given: Mapping[str, Any]) -> str:
    dtype, most_bytes, numbers = given["dtype"], given.get("most_bytes"), [*DTYPES]
    numbers.remove("bfloat16")
    if dtype == BYTES:
        if most_bytes is not None and not 1 <= most_bytes <= MOST_BYTES:
            raise CompileError(
                f"most_bytes of {given['name']!r} is {most_bytes} in model.toml; it has to be from 1 to "
                f"{MOST_BYTES:,}"
            )
        return f"S{most_bytes or TEXT_BYTES}"
    if dtype not in numbers:
        raise CompileError(
            f"dtype of {given['name']!r} is {dtype!r} in model.toml and none of "
            f"{one_of(dtype, [BYTES, *numbers])}"
        )
    if most_bytes is not None:
        raise CompileError(f"most_bytes of {given['name']!r} in model.toml is for dtype {BYTES!r} alone")
    return str(dtype)


def _check_names(inputs: Sequence[IoTensor], outputs: Sequence[IoTensor], symbols: Sequence[Symbol]) -> None:
    for kind, tensors in (("input", inputs), ("output", outputs)):
        names = [tensor.name for tensor in tensors]
        if again := [name for name in names if names.count(name) > 1]:
            raise CompileError(f"model.toml names the {kind} {again[0]!r} twice")
    used = {term.symbol for tensor in inputs for dim in tensor.open for term in dim.terms}
    if unused := [each.name for index, each in enumerate(symbols) if index not in used]:
        raise CompileError(
            f"most.{unused[0]} in model.toml is the size of no input: what requests don't choose is a "
            'number, or "<=N" where an output varies'
        )


def _batch_sizes(given: Mapping[str, Any], outputs: Sequence[IoTensor]) -> tuple[int, ...]:
    sizes = given.get("batch_sizes", [1])
    fine = all(
        isinstance(each, int) and not isinstance(each, bool) and 1 <= each <= MOST_ROWS for each in sizes
    )
    if not sizes or not fine:
        raise CompileError(
            f"batch_sizes is {sizes} in model.toml: give one or more numbers from 1 to {MOST_ROWS}"
        )
    varying = [tensor.name for tensor in outputs if tensor.varies]
    because = f"rows = {given['rows']!r}" if given["rows"] != INDEPENDENT else ""
    because = because or (f"the output {varying[0]!r} varies" if varying else "")
    if because and sizes != [1]:
        raise CompileError(f"batch_sizes is {sizes} in model.toml; because {because}, it has to be [1]")
    return tuple(sorted({*sizes}))
