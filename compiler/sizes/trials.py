"""Runs of a model with open dimensions at different sizes, from which its symbols and forms are found."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.reading.normalise import OpenAxis
from mainspring.compiler.sizes.work import MOST_WORK, Counter
from mainspring.messages.model import TensorSpec

LONGEST_S = 0.25
"""CPU time of one row up to which larger sizes are tried, of a model whose work can't be counted."""
_MOST_S = 10 * LONGEST_S
"""The same of one whose work is counted, for operators that take far longer than their count says."""
COMMON = ((640, 100_000_000_000), (1_344, 40_000_000_000))
"""Sizes that models are commonly used at (detectors' 640 pixels, texts of 512 tokens, pages of 1,280 pixels,
pictures of 800 x 1,333), each with the work of one row up to which sizes are looked for that are no larger.
Where not all of a default batch can have them, the batch has fewer rows."""
LARGEST_COMMON = COMMON[-1][0]
FEWEST_ROWS = 2
"""Rows that the largest batch must have room for at a common size."""
MOST_IO_BYTES = 128 << 20
"""Inputs and outputs of the largest batch up to which larger sizes are looked for."""
MOST_WORKSPACE_BYTES = 2 << 30
"""Memory for its activations, likewise."""


class NoRoom(CompileError):
    """There is less memory than a run needs, whatever values it is given."""


class Tried(NamedTuple):
    """A run of one row of the original model."""

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its outputs, without the batch."""
    output_bytes: int
    seconds: float
    """CPU time."""
    grown_bytes: int
    """Growth of the process's memory since the first run."""


class Trials:
    """Runs of one row at different sizes, each made once."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        axes: Sequence[OpenAxis],
        run: Callable[[Sequence[TensorSpec]], Sequence[npt.NDArray[np.generic]]],
        rows: int,
        counter: Counter,
        *,
        or_fewer: bool = False,
    ) -> None:
        """``run`` runs one row of inputs of these shapes; it raises `CompileError` if the model can't.

        ``rows``: of the largest batch, which may have less if ``or_fewer``; ``counter`` counts what a row
        costs.
        """
        self._counter = counter
        self._rows = rows
        self._or_fewer = or_fewer
        self._process = psutil.Process()
        self._first_bytes = self._process.memory_info().rss
        self._inputs = inputs
        self._axes = axes
        self._run = run
        self._known: dict[tuple[tuple[str, int], ...], Tried | None] = {}
        self.error = ""
        """Error of the first run that failed."""

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
        """Return the inputs of fixed shapes, for a size of each open dimension."""
        shapes = [list(spec.shape) for spec in self._inputs]
        for index, axis, name in self._axes:
            shapes[index][axis] = sizes[name]
        return tuple(
            TensorSpec(spec.name, spec.dtype, tuple(shape))
            for spec, shape in zip(self._inputs, shapes, strict=True)
        )

    def at(self, sizes: Mapping[str, int]) -> Tried | None:
        """Return the run at these sizes; None if it fails."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            begin_ns = time.thread_time_ns()
            try:
                outputs = self._run(self.inputs_at(sizes))
                seconds = (time.thread_time_ns() - begin_ns) / 1e9
                shapes = tuple(output.shape[1:] for output in outputs)
                grown = self._process.memory_info().rss - self._first_bytes
                self._known[key] = Tried(shapes, sum(each.nbytes for each in outputs), seconds, grown)
            except CompileError as error:
                self.error = self.error or str(error)
                self._known[key] = None
        return self._known[key]

    def affords(self, sizes: Mapping[str, int], times: float = 1.0) -> bool:
        """Return whether a batch that is ``times`` as large as at these sizes would fit, as far as it is
        known."""
        found, counted = self._known.get(tuple(sorted(sizes.items()))), self._counter.at(sizes)
        io_bytes = sum(spec.row_bytes for spec in self.inputs_at(sizes))
        if found is not None:
            io_bytes += found.output_bytes
        workspace = counted.live_bytes if counted else found.grown_bytes if found is not None else 0
        rows = min(self._rows, FEWEST_ROWS) if self._is_common(sizes) else self._rows
        return io_bytes * rows * times <= MOST_IO_BYTES and workspace * rows * times <= MOST_WORKSPACE_BYTES

    def _is_common(self, sizes: Mapping[str, int]) -> bool:
        return self._or_fewer and max(sizes.values(), default=0) <= LARGEST_COMMON

    def _most_work(self, sizes: Mapping[str, int]) -> float:
        """Return what a row may cost at these sizes."""
        if not self._is_common(sizes):
            return MOST_WORK
        return max(MOST_WORK, next(work for size, work in COMMON if max(sizes.values(), default=0) <= size))

    def reduce_rows(self, sizes: Mapping[str, int], *, found: bool) -> int:
        """Have the largest batch be one that fits at the limits; return its rows.

        Its activations fit `MOST_WORKSPACE_BYTES`; and where the limits were ``found``, its inputs and
        outputs fit `MOST_IO_BYTES`, and it costs no more than all rows of `MOST_WORK` would.
        """
        counted, run = self._counter.at(sizes), self._known.get(tuple(sorted(sizes.items())))
        bounds = [float(self._rows)]
        if counted is not None and counted.live_bytes:
            bounds.append(MOST_WORKSPACE_BYTES // counted.live_bytes)
        if found and run is not None:
            io_bytes = sum(spec.row_bytes for spec in self.inputs_at(sizes)) + run.output_bytes
            bounds.append(MOST_IO_BYTES // max(io_bytes, 1))
        if found and counted is not None and counted.work > MOST_WORK:
            bounds.append(self._rows * MOST_WORK // counted.work)
        self._rows = max(1, int(min(bounds)))
        return self._rows

    def check_room(self, sizes: Mapping[str, int]) -> None:
        """Raise `NoRoom` if the largest batch's activations don't fit into memory at these sizes."""
        counted, there = self._counter.at(sizes), _available_bytes()
        needed = counted.live_bytes * self._rows if counted is not None else 0
        if needed > there:
            at = "".join(f", {name} = {size}" for name, size in sizes.items())
            raise NoRoom(
                f"a run of {self._rows} rows{at} needs {needed / 1e9:,.1f} GB for activations, and there are "
                f"{there / 1e9:,.1f} GB; give smaller `--batch-sizes`{', or a smaller `--max`' if at else ''}"
            )

    def grows(self, sizes: Mapping[str, int], larger: Mapping[str, int]) -> bool:
        """Return whether ``larger`` sizes, twice those of a run at ``sizes``, are within the bounds of
        trials."""
        found, counted = self.at(sizes), self._counter.at(larger)
        if found is None:
            return False
        if counted is None:
            longest_s = LONGEST_S * self._most_work(larger) / MOST_WORK
            return found.seconds * 2 <= longest_s and self.affords(sizes, 2.0)
        return (
            counted.work <= self._most_work(larger)
            and found.seconds <= _MOST_S
            and self.affords(larger)
            and self.affords(sizes, 2.0)
        )

    def corner(self, sizes: Mapping[str, int], alone: Sequence[tuple[Mapping[str, int], float]]) -> bool:
        """Return whether the model runs at these sizes, all at their limits, within twice the time allowed
        for one row.

        ``alone`` has sizes with one symbol at its limit, and how much larger a row is than there.
        """
        if not self.affords(sizes):
            return False
        counted = self._counter.at(sizes)
        if counted is not None:
            most = max(2 * MOST_WORK, self._most_work(sizes))
            return counted.work <= most and self.at(sizes) is not None and self.affords(sizes)
        # From a run with one symbol at its limit: a shorter one has more that does not grow.
        runs = [(self.at(each), times) for each, times in alone]
        expected = [run.seconds * times for run, times in runs if run is not None]
        if not expected or min(expected) > 2 * LONGEST_S:
            return False
        tried = self.at(sizes)
        return tried is not None and tried.seconds <= 2 * LONGEST_S and self.affords(sizes)


def _available_bytes() -> int:
    """Return the memory that this process may still take."""
    free = int(psutil.virtual_memory().available)
    bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return free if bound == resource.RLIM_INFINITY else min(free, bound)
