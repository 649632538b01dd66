"""Proving that requests of different sizes may share an execution, each padded to the largest of its bucket.

That is so where what follows behind a request's own sizes changes nothing before it. It is proven by the pass
that proves rows independent, which follows a symbol's axis instead of the batch: where each place of the
outputs is a function of the same place of the inputs, any padding will do. Elsewhere the model's author says
with which values to pad (a mask of zeros). Both are tried on samples: beside requests as large as their
bucket, the outputs of small ones have to be what the original says of these alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import onnx

from mainspring.compiler.artifact.arrays import Runnable
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.choosing.verify import FLOOR, compare, tolerance_of
from mainspring.compiler.independence.walk import why_places_mix
from mainspring.compiler.reading.contents import read_back
from mainspring.compiler.reading.stock import optimise_portably
from mainspring.compiler.reference import Prepared
from mainspring.messages.model import Symbol, TensorSpec

Array = npt.NDArray[np.generic]
Sizes = tuple[int, ...]
Says = Callable[[Sequence[Array]], npt.NDArray[np.bool_]]
"""Returns which rows have anything but padding."""

_DRAWN = 8
"""Rows that are drawn of each size."""
_PADDED_KINDS = "biuf"


def parse_pads(texts: Iterable[str]) -> dict[str, float]:
    """Return the values of inputs in texts such as ``input_ids=0``; raise `CompileError` for others."""
    pads: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            name = ""
        if not name:
            raise CompileError(f"padding {text!r} isn't an input's name and a number, such as input_ids=0")
        if name in pads:
            raise CompileError(f"input {name!r} is given two values; give one --pad for each")
        pads[name] = value
    return pads


def check_pads(prepared: Prepared, pads: Mapping[str, float]) -> dict[str, float]:
    """Return the value for each input with an open dimension, 0 where none is given.

    Raises `CompileError` for values that no such input can have.
    """
    opened = {spec.name: spec for spec in prepared.inputs if spec.open}
    for name, value in pads.items():
        if name not in opened:
            raise CompileError(
                f"the model has no input {name!r} with an open dimension (it has "
                f"{', '.join(opened) or 'none'}); give `--pad` one of these"
            )
        dtype = np.dtype(opened[name].dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            fits = dtype.kind in _PADDED_KINDS and float(np.float64(value).astype(dtype)) == value
        if not fits and dtype.kind != "f":
            raise CompileError(f"input {name!r} is of {opened[name].dtype}, which {value:g} is not")
    return {name: float(pads.get(name, 0)) for name in opened}


def padding(
    model: Runnable, prepared: Prepared, declared: Mapping[str, float], batch_sizes: Sequence[int]
) -> dict[str, float]:
    """Return the values with which requests of different sizes may be padded; empty if they may not be.

    Raises `CompileError` if values are ``declared`` with which they may not.
    """
    if declared and (not prepared.symbols or batch_sizes[-1] == 1):
        why = "all its dimensions are fixed" if not prepared.symbols else "a batch has one row only"
        raise CompileError(f"nothing can be padded, because {why}: leave `--pad` out")
    if batch_sizes[-1] == 1:
        return {}
    values = neutral_pads(prepared, declared)
    says = speaking(prepared, values, declared)
    try:
        for ceilings in _ceilings(prepared) if values else ():
            _compare_at(model, prepared, values, says, ceilings, batch_sizes)
    except CompileError as error:
        if not declared:
            return {}
        said = padding_said(values)
        raise CompileError(f"requests can't be {said}: {error}; leave `--pad` out") from None
    return values


def neutral_pads(prepared: Prepared, declared: Mapping[str, float]) -> dict[str, float]:
    """Return the values for inputs with open dimensions that are said or proven to change nothing.

    Empty if none are, or nothing is open. Raises `CompileError` for values that no such input can have.
    """
    if not prepared.symbols:
        return {}
    values = check_pads(prepared, declared)
    return values if declared or _is_proven(prepared) else {}


def padding_said(values: Mapping[str, float]) -> str:
    """Say with what requests are padded."""
    return f"padded with {', '.join(f'{name} = {value:g}' for name, value in values.items())}"


def _is_proven(prepared: Prepared) -> bool:
    """Return whether no place along any symbol depends on another, or on how many there are."""
    model = read_back(prepared.content)
    models = [model]
    # The compiler reports whether ONNX Runtime accepts the model.
    with suppress(CompileError):
        models.append(optimise_portably(prepared.content, values=False))
    padded = [np.dtype(spec.dtype).kind in _PADDED_KINDS for spec in prepared.inputs if spec.open]
    return all(padded) and all(
        any(_places_apart(each, prepared, symbol) for each in models)
        for symbol in range(len(prepared.symbols))
    )


def _places_apart(model: onnx.ModelProto, prepared: Prepared, symbol: int) -> bool:
    inputs = {spec.name: axis for spec in prepared.inputs if (axis := _axis(spec, symbol)) is not None}
    outputs = [_axis(spec, symbol) for spec in prepared.outputs]
    terms = [[term for dim in spec.open for term in dim.every_term] for spec in prepared.inputs]
    taken = sum(any(term.symbol == symbol for term in each) for each in terms)
    known = [axis for axis in outputs if axis is not None]
    if taken != len(inputs) or len(known) != len(outputs):
        return False
    names = [value.name for value in model.graph.output]
    return not why_places_mix(model, inputs, dict(zip(names, known, strict=True)))


def _axis(spec: TensorSpec, symbol: int) -> int | None:
    """Return the one axis that is as long as the symbol says, the batch being the first; else None."""
    axes = [dim for dim in spec.open if any(term.symbol == symbol for term in dim.every_term)]
    return axes[0].axis + 1 if len(axes) == 1 and axes[0].symbol == symbol else None


def _ceilings(prepared: Prepared) -> list[Sizes]:
    """Return the ceilings of buckets to try: the smallest, one in the middle, the largest."""
    ladders = [symbol.ceilings for symbol in prepared.symbols]
    places = [[0] * len(ladders), [len(each) // 2 for each in ladders], [len(each) - 1 for each in ladders]]
    return list(dict.fromkeys(tuple(map(tuple.__getitem__, ladders, each)) for each in places))


def smallest(prepared: Prepared, symbols: Sequence[Symbol], ceilings: Sizes) -> Sizes:
    """Return the smallest sizes of a bucket of ``symbols``, which may have few ceilings."""
    found = []
    for symbol, each, ceiling in zip(symbols, prepared.ranges, ceilings, strict=True):
        place = bisect_left(symbol.ceilings, ceiling)
        least = symbol.least if place == 0 else symbol.ceilings[place - 1] + 1
        found.append(min(ceiling, each.base - (each.base - least) // each.step * each.step))
    return tuple(found)


def within(prepared: Prepared, sizes: Sizes, ceilings: Sizes) -> str:
    """Say which request of which bucket it is."""
    names = zip(prepared.symbols, sizes, ceilings, strict=True)
    return f"of a request of {', '.join(f'{each.name} {size} of {most}' for each, size, most in names)}"


def _compare_at(
    model: Runnable,
    prepared: Prepared,
    values: Mapping[str, float],
    says: Says,
    ceilings: Sizes,
    batch_sizes: Sequence[int],
) -> None:
    """Compare small requests beside ones as large as their bucket; raise `CompileError` if they differ."""
    sizes = smallest(prepared, prepared.symbols, ceilings)
    small, large = prepared.rows_at(sizes, _DRAWN), prepared.rows_at(ceilings, _DRAWN)
    batch_size = next(size for size in batch_sizes if size > 1)
    where = within(prepared, sizes, ceilings)
    tolerance = tolerance_of("fp32")._replace(floor=FLOOR)
    for row in np.flatnonzero(says(small)):
        alone = prepared.reference.run([array[row : row + 1] for array in small])
        batch = []
        for spec, few, many in zip(prepared.inputs, small, large, strict=True):
            rows = np.resize(many, (batch_size, *many.shape[1:]))
            rows[0] = values.get(spec.name, 0)
            rows[0][tuple(map(slice, few.shape[1:]))] = few[row]
            batch.append(rows)
        found = model.run_arrays(batch_size, batch, ceilings)
        for spec, output, expected in zip(prepared.outputs, found, alone, strict=True):
            cut = output[0][tuple(map(slice, spec.at(sizes).shape))][None]
            compare(cut, expected, spec, where, prepared, tolerance)


def said_by(values: Mapping[str, float], declared: Mapping[str, float]) -> frozenset[str]:
    """Return the inputs whose padding says that there is nothing: declared ones, and masks beside these."""
    return frozenset([*declared, *(name for name in values if declared and "mask" in name)])


def speaking(prepared: Prepared, values: Mapping[str, float], declared: Mapping[str, float]) -> Says:
    """Return what finds the rows that have anything but padding in each mask and each declared input.

    What a model makes of a request all of which is masked means nothing.
    """
    named = said_by(values, declared)

    def says(rows: Sequence[Array]) -> npt.NDArray[np.bool_]:
        found = np.ones(len(rows[0]), np.bool_)
        for spec, array in zip(prepared.inputs, rows, strict=True):
            if spec.name in named:
                found &= (array != values[spec.name]).reshape(len(array), -1).any(axis=1)
        return found

    return says
