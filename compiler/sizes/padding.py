"""Requests of different sizes in one execution, each padded to the largest of its bucket or to its ceilings.

That is so where what follows behind a request's own sizes changes nothing before it. It is proven by the pass
that proves rows independent, which follows a symbol's axis instead of the batch: where each place of the
outputs is a function of the same place of the inputs, any padding will do. Elsewhere the model's author says
with which values to pad (a mask of zeros). Both are tried on samples: beside requests as large as their
bucket, the outputs of small ones have to be what the original says of these alone.

Kernels of fixed shapes are compiled for each batch size and bucket, and every request is padded to its
bucket's ceilings. That takes time, so there are fewer buckets than where shapes may be open. Each is compared
with the original on requests of sizes in between, since one bucket's kernels say nothing of another's.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from mainspring.compiler.artifact.arrays import Runnable
from mainspring.compiler.artifact.errors import CompileError, RowsMix
from mainspring.compiler.artifact.manifest import Verification
from mainspring.compiler.artifact.plan import Shape
from mainspring.compiler.choosing.tolerances import FLOOR, tolerance_of
from mainspring.compiler.choosing.verify import compare, verify
from mainspring.compiler.independence.walk import why_places_mix
from mainspring.compiler.reading.contents import read_back
from mainspring.compiler.reading.stock import optimise_portably
from mainspring.compiler.reference import Prepared
from mainspring.compiler.sizes.forms import short_ladder
from mainspring.messages.model import Symbol, TensorSpec, array_dtype

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


MOST_PLANS = 40
"""Most shapes that a model is compiled for: its batch sizes times its buckets, but one bucket at least."""
_BETWEEN = 2
"""Sizes between a bucket's smallest and its ceilings that are compared."""


class Padded(NamedTuple):
    """The fixed shapes and the padding that a model with open dimensions is compiled for."""

    symbols: tuple[Symbol, ...]
    """Symbols with the ceilings that the model is compiled for."""
    values: dict[str, float]
    """Value with which each input that has an open dimension is padded to them."""
    declared: Mapping[str, float]
    """Values of these that were declared; empty if it is proven that any will do."""

    @property
    def buckets(self) -> list[Sizes]:
        """The ceilings of each bucket, ascending."""
        return [*itertools.product(*[symbol.ceilings for symbol in self.symbols])]

    def shapes(self, batch_sizes: Sequence[int]) -> list[Shape]:
        """Return all shapes to compile for."""
        return [Shape(size, bucket) for size in batch_sizes for bucket in self.buckets]

    def ceilings_of(self, sizes: Sizes) -> Sizes:
        """Return the ceilings of the bucket that sizes belong to."""
        ladders = zip(self.symbols, sizes, strict=True)
        return tuple(next(each for each in symbol.ceilings if each >= size) for symbol, size in ladders)


def padded(
    prepared: Prepared, declared: Mapping[str, float], batch_sizes: Sequence[int], what: str
) -> Padded | None:
    """Return how ``what`` runs a model; None if all of its dimensions are fixed.

    Raises `CompileError` for open ones where nothing says that requests may be padded.
    """
    values = neutral_pads(prepared, declared)
    if not prepared.symbols:
        return None
    if not values:
        opened = next(spec.name for spec in prepared.inputs if spec.open)
        raise CompileError(
            f"dimension {prepared.symbols[0].name!r} is open, {what} is for fixed shapes, to which requests "
            "are padded, and it is not proven that padding changes no answer: say with what inputs may be "
            f"padded, such as `--pad {opened}=0` (it is compared on samples), fix the dimension with "
            "`--shape`, a number for each, or compile with `--engine onnxruntime --device cpu`"
        )
    most = max(1, MOST_PLANS // len(batch_sizes))
    share = max(1, math.floor(most ** (1 / len(prepared.symbols)) + 1e-9))
    symbols = tuple(
        msgspec.structs.replace(symbol, ceilings=short_ladder(each, share))
        for symbol, each in zip(prepared.symbols, prepared.ranges, strict=True)
    )
    return Padded(symbols, values, declared)


class PaddedModel:
    """Runs batches of any sizes at their bucket's ceilings (`Runnable`)."""

    def __init__(self, model: Runnable, prepared: Prepared, how: Padded) -> None:
        """``model`` runs at ceilings alone."""
        self._model = model
        self._prepared = prepared
        self._how = how

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Run at ceilings, to which nothing needs to be padded."""
        self._model.run(batch_size, inputs, outputs, sizes)

    def run_arrays(self, batch_size: int, arrays: Sequence[Array], sizes: Sizes = ()) -> list[Array]:
        """Run rows of one size; the outputs are cut back to it."""
        rows = [[array[row : row + 1] for array in arrays] for row in range(batch_size)]
        found = self.run_rows(rows, [sizes] * batch_size, self._how.ceilings_of(sizes))
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

    def run_rows(
        self, rows: Sequence[Sequence[Array]], sizes: Sequence[Sizes], ceilings: Sizes
    ) -> list[list[Array]]:
        """Run a batch of rows of these sizes; return the outputs of each."""
        batch = []
        for index, spec in enumerate(self._prepared.inputs):
            shape = (len(rows), *spec.at(ceilings).shape)
            array = np.full(shape, self._how.values.get(spec.name, 0), array_dtype(spec.dtype))
            for into, own in zip(array, rows, strict=True):
                into[tuple(map(slice, own[index].shape[1:]))] = own[index][0]
            batch.append(array)
        found = self._model.run_arrays(len(rows), batch, ceilings)
        return [
            [
                output[row : row + 1][(slice(None), *map(slice, spec.at(own).shape))]
                for spec, output in zip(self._prepared.outputs, found, strict=True)
            ]
            for row, own in enumerate(sizes)
        ]


def verify_padded(
    bound: Runnable, prepared: Prepared, how: Padded, batch_sizes: Sequence[int], precision: str
) -> Verification:
    """Compare at every batch size and bucket; raise `CompileError` that says where outputs differ.

    First as `verify` does at some sizes, then requests of each bucket beside others of it.
    """
    model = PaddedModel(bound, prepared, how)
    says = speaking(prepared, how.values, how.declared)
    try:
        found = verify(model, prepared, batch_sizes, precision, partial(_speaking, prepared, how, says))
        compared = [
            _verify_bucket(model, prepared, how, ceilings, batch_sizes, precision) for ceilings in how.buckets
        ]
    except RowsMix:
        raise
    except CompileError as error:
        instead = "compile with `--engine onnxruntime --device cpu`"
        raise CompileError(f"with requests {padding_said(how.values)}, {error}; {instead}") from None
    return msgspec.structs.replace(
        found,
        largest_difference=max([found.largest_difference, *[largest for largest, _ in compared]]),
        rows=found.rows + sum(rows for _, rows in compared),
    )


def _verify_bucket(
    model: PaddedModel,
    prepared: Prepared,
    how: Padded,
    ceilings: Sizes,
    batch_sizes: Sequence[int],
    precision: str,
) -> tuple[float, int]:
    """Compare batches of unlike requests of a bucket; return the largest difference and how many rows.

    At each batch size there are requests of all the sizes that are tried.
    """
    says, tried = speaking(prepared, how.values, how.declared), _sizes_within(prepared, how, ceilings)
    tolerance = tolerance_of(precision)._replace(floor=FLOOR)
    count = -(-max(*batch_sizes, len(tried)) // len(tried))
    drawn = [_speaking(prepared, how, says, prepared.rows_at(sizes, count)) for sizes in tried]
    requests = []
    for row, (sizes, rows) in itertools.product(range(count), zip(tried, drawn, strict=True)):
        arrays = [array[row : row + 1] for array in rows]
        requests.append((sizes, arrays, prepared.reference.run(arrays)))
    largest, compared, random = 0.0, 0, np.random.default_rng(ceilings)
    for batch_size in batch_sizes:
        # A whole number of batches.
        wanted = -(-max(batch_size, len(tried)) // batch_size) * batch_size
        chosen = [requests[k] for k in random.permutation(np.arange(wanted) % len(requests))]
        for begin in range(0, wanted, batch_size):
            batch = chosen[begin : begin + batch_size]
            found = model.run_rows(
                [arrays for _, arrays, _ in batch], [sizes for sizes, *_ in batch], ceilings
            )
            for (sizes, _, alone), outputs in zip(batch, found, strict=True):
                where = f"at batch size {batch_size} {within(prepared, sizes, ceilings)}"
                for spec, output, expected in zip(prepared.outputs, outputs, alone, strict=True):
                    largest = max(largest, compare(output, expected, spec, where, prepared, tolerance))
        compared += wanted
    return largest, compared


def _sizes_within(prepared: Prepared, how: Padded, ceilings: Sizes) -> list[Sizes]:
    """Return the smallest sizes of a bucket, some between, and its ceilings."""
    least = smallest(prepared, how.symbols, ceilings)
    random = np.random.default_rng(ceilings)
    steps = [
        (most - few) // symbol.step for symbol, few, most in zip(how.symbols, least, ceilings, strict=True)
    ]
    between = [
        tuple(
            few + int(random.integers(0, count + 1)) * symbol.step
            for symbol, few, count in zip(how.symbols, least, steps, strict=True)
        )
        for _ in range(_BETWEEN)
    ]
    return list(dict.fromkeys([least, *between, ceilings]))


def _speaking(prepared: Prepared, how: Padded, says: Says, rows: list[Array]) -> list[Array]:
    """Return as many rows, of which each has something but padding in its masks."""
    spoken = np.flatnonzero(says(rows))
    if len(spoken) == len(rows[0]):
        return rows
    if len(spoken):
        return [array[np.resize(spoken, len(array))] for array in rows]
    named = said_by(how.values, how.declared)
    found = [array.copy() for array in rows]
    for spec, array in zip(prepared.inputs, found, strict=True):
        if spec.name in named and array.size:
            array.reshape(len(array), -1)[:, 0] = how.values[spec.name] + 1
    return found
