"""Comparison of an artifact with stock ONNX Runtime on the original model, at every batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mainspring.compiler.artifact.arrays import Runnable
from mainspring.compiler.artifact.errors import CompileError, ExecutableError, RowsMix
from mainspring.compiler.artifact.manifest import FP32, Verification
from mainspring.compiler.choosing.tolerances import FLOOR, Array, Tolerance, differences, tolerance_of
from mainspring.messages.model import TensorSpec

if TYPE_CHECKING:
    from mainspring.compiler.reference import Prepared

_FEW = 3
"""Largest batch that is compared at other shapes than the first."""


def verify(
    model: Runnable,
    prepared: Prepared,
    batch_sizes: Sequence[int],
    precision: str = FP32,
    chosen: Callable[[list[Array]], list[Array]] = lambda rows: rows,
) -> Verification:
    """Compare at each of these batch sizes; raise `CompileError` that says where and by how much they differ.

    Every row of a batch is compared with the original's output for the same batch and, because different
    callers share batches, with the artifact's output for the row alone; `RowsMix` is raised if that differs.
    ``chosen`` takes, of sampled rows, those whose outputs mean something, in as many rows.
    """
    tolerance = tolerance_of(precision)
    largest, rows = 0.0, 0
    for index, sizes in enumerate(prepared.shapes):
        # Batches are compared at the first shape; at the others, that rows are apart, too.
        few = [size for size in batch_sizes if index == 0 or size <= max(batch_sizes[0], _FEW)]
        rows_here = prepared.rows if index == 0 else prepared.rows_at(sizes, max(few))
        pool = _Pool(model, prepared, sizes, chosen(rows_here))
        difference, compared = _verify_at(pool, few, tolerance)
        largest, rows = max(largest, difference), rows + compared
    return Verification(tolerance.relative, tolerance.scale, largest, rows, opinion=prepared.opinion)


class _Pool(NamedTuple):
    """Sampled rows of one shape, and what runs them."""

    model: Runnable
    prepared: Prepared
    sizes: tuple[int, ...]
    """Size of each of the model's symbols."""
    rows: list[Array]

    def run(self, batch_size: int, arrays: list[Array]) -> list[Array]:
        """Run the artifact."""
        return self.model.run_arrays(batch_size, arrays, self.sizes)

    def where(self, batch_size: int) -> str:
        """Say which run it is, for an error."""
        names = [symbol.name for symbol in self.prepared.symbols]
        sizes = "".join(f", {name} {size}" for name, size in zip(names, self.sizes, strict=True))
        return f"at batch size {batch_size}{sizes}"


def _verify_at(of: _Pool, batch_sizes: Sequence[int], tolerance: Tolerance) -> tuple[float, int]:
    """Compare at one shape; return the largest difference and the number of rows."""
    prepared, pool = of.prepared, len(of.rows[0])
    alone = _rows_alone(of, max(batch_sizes), min(batch_sizes))
    largest, rows = 0.0, 0
    # Another order each time, so that no row is always in the same place.
    trials = [np.random.default_rng(size).permutation(pool)[:size] for size in batch_sizes]
    if prepared.whole:
        # What a request's values are may decide what is computed, so one would not show all.
        trials = [np.array([row]) for row in range(pool)]
    for chosen in trials:
        batch_size = len(chosen)
        batch = [array[chosen] for array in of.rows]
        found = of.run(batch_size, batch)
        expected = prepared.reference.from_the_beginning().run(batch)
        where = of.where(batch_size)
        for index, spec in enumerate(prepared.outputs):
            allowed = tolerance._replace(floor=FLOOR)
            difference = compare(found[index], expected[index], spec, where, prepared, allowed)
            largest = max(largest, difference)
            mixed = f"{where} depends on the other rows of the batch; it"
            known = chosen < max(batch_sizes)
            if not known.any():
                continue
            try:
                compare(found[index][known], alone[index][chosen[known]], spec, mixed, prepared, tolerance)
            except CompileError as error:
                raise RowsMix(str(error)) from None
        rows += batch_size
    _check_beside_infinities(of, alone, max(batch_sizes), tolerance)
    return largest, rows


def _check_beside_infinities(
    of: _Pool, alone: Sequence[Array], batch_size: int, tolerance: Tolerance
) -> None:
    """Raise `RowsMix` if a row of infinities changes the others of its batch.

    A row that is added with a weight of 0 changes nothing, unless it is infinite.
    """
    if batch_size == 1:
        return
    prepared = of.prepared
    batch = [array[:batch_size].copy() for array in of.rows]
    place = batch_size // 2
    for array in batch:
        if array.dtype.kind == "f":
            array[place] = np.resize(np.array([np.inf, np.nan, -np.inf], array.dtype), array[place].shape)
    try:
        found = of.run(batch_size, batch)
    except ExecutableError:
        # An infinity may become an invalid index: an error gives no outputs, and rows run again alone.
        return
    others = np.arange(batch_size) != place
    where = f"{of.where(batch_size)} depends on another row of the batch, which is infinite; it"
    for index, spec in enumerate(prepared.outputs):
        try:
            expected = alone[index][:batch_size][others]
            compare(found[index][others], expected, spec, where, prepared, tolerance)
        except CompileError as error:
            raise RowsMix(str(error)) from None


def _rows_alone(of: _Pool, rows: int, size: int) -> list[Array]:
    """Return the outputs of the pool's first rows, each in a batch of copies of itself."""
    single = [
        of.run(size, [np.repeat(array[row : row + 1], size, axis=0) for array in of.rows])
        for row in range(rows)
    ]
    return [np.concatenate([part[:1] for part in parts]) for parts in zip(*single, strict=True)]


def compare(
    found: Array, expected: Array, spec: TensorSpec, where: str, prepared: Prepared, allowed: Tolerance
) -> float:
    """Return the largest difference; raise `CompileError` if any is beyond what is ``allowed``."""
    if expected.shape == found.shape[1:] and len(found) == 1:
        # A Squeeze without axes takes the batch away where it has but one row (`batch.name_squeezed`).
        expected = expected[None]
    if found.shape != expected.shape:
        raise prepared.refusal(f"output {spec.name!r} {where} is {found.shape}, not {expected.shape}")
    difference, tolerance = differences(found, expected, allowed)
    if np.all(difference <= tolerance):
        return float(difference.max(initial=0.0))
    worst = np.unravel_index(np.argmax(difference - tolerance), difference.shape)
    raise prepared.refusal(
        f"output {spec.name!r} {where} differs from stock ONNX Runtime's by {difference[worst]:.3g} in row "
        f"{worst[0]}, element {tuple(int(axis) for axis in worst[1:])}: {found[worst]} instead of "
        f"{expected[worst]} (tolerance {tolerance[worst]:.3g})"
    )
