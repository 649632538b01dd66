"""Models that run at their buckets' ceilings alone: how requests get there, and that it changes nothing.

Kernels are of fixed shapes, so a model with open dimensions is compiled for each batch size and bucket, and
every request is padded to its bucket's ceilings (`padding` says with what). Compiling takes time for each of
them, so there are fewer buckets than where shapes may be open. Each is compared with the original on requests
of sizes in between, side by side, since one bucket's kernels say nothing of another's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.arrays import Runnable
from mainspring.compiler.artifact.errors import CompileError, RowsMix
from mainspring.compiler.artifact.manifest import Verification
from mainspring.compiler.artifact.plan import Shape
from mainspring.compiler.choosing.verify import FLOOR, compare, tolerance_of, verify
from mainspring.compiler.reference import Prepared
from mainspring.compiler.sizes.forms import short_ladder
from mainspring.compiler.sizes.padding import (
    Says,
    neutral_pads,
    padding_said,
    said_by,
    smallest,
    speaking,
    within,
)
from mainspring.messages.model import Symbol, array_dtype

Array = npt.NDArray[np.generic]
Sizes = tuple[int, ...]

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
