"""Measured durations, those of every bucket of a model with symbols, and the artifact that takes the least.

At the smallest batch size, each symbol's ceilings are measured where the slope of the duration changes: a
ceiling is interpolated if half way between its neighbours the straight line was right. With several symbols
all combinations of these knots are measured. Other batch sizes are measured at the ends and in the middle;
what they take at other shapes follows from what the smallest one takes there, on straight lines.

This folder can't measure a GPU, because it may not import the worker: a caller passes a *judge* that measures
artifacts on their device (`mainspring.cli.profiling.gpu_judge`).
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import CPU, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import Profile, Symbol

Ints = npt.NDArray[np.int64]

DISTURBED = 1.25
"""A seed is at most this multiple of the median: longer durations are taken for disturbances."""


class Timing(msgspec.Struct, frozen=True):
    """A summary of durations."""

    runs: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    @classmethod
    def of(cls, durations_ns: Ints) -> Timing:
        """Return the timing of one or more durations."""
        return cls(
            len(durations_ns), quantile(durations_ns, 50), quantile(durations_ns, 99), int(durations_ns.max())
        )

    @property
    def seed_ns(self) -> int:
        """The first estimate: high among the measured durations, because a low one makes answers late."""
        return min(self.p99_ns, round(self.p50_ns * DISTURBED))

    @property
    def spread(self) -> float:
        """The 99th percentile as a multiple of the median."""
        return self.p99_ns / self.p50_ns


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The number of repetitions: for ``seconds``, but within these numbers of runs."""

    seconds: float = 1.0
    fewest: int = 5
    most: int = 2000
    warm_up: int = 2
    """Runs that are not counted."""


def quantile(durations_ns: Ints, percent: float) -> int:
    """Return the smallest measured duration that ``percent`` of all do not exceed."""
    # Rounded, so that 99.9 % of 1,000 is exactly 999.
    rank = max(1, math.ceil(round(len(durations_ns) * percent / 100, 6)))
    return int(np.partition(durations_ns, rank - 1)[rank - 1])


def repeat(run: Callable[[], int], effort: Effort) -> Ints:
    """Return the durations in ns that ``run`` returned."""
    for _ in range(effort.warm_up):
        run()
    durations = [run()]
    end_s = time.monotonic() + effort.seconds
    while len(durations) < effort.fewest or (time.monotonic() < end_s and len(durations) < effort.most):
        durations.append(run())
    return np.array(durations, np.int64)


Sizes = tuple[int, ...]

Floats = npt.NDArray[np.float64]

_STRAIGHT = 0.1
"""Part of a duration by which a straight line may be off where nothing is measured."""

_MOST_KNOTS = (9, 4, 3, 2)
"""Most knots of a symbol, by the number of symbols beside it."""


def profile(
    measure: Callable[[int, Sizes], int], symbols: Sequence[Symbol], batch_sizes: Sequence[int]
) -> dict[Sizes, dict[int, int]]:
    """Return the duration in nanoseconds of each bucket and batch size.

    ``measure`` returns it for a batch size and a size of each symbol.
    """
    limits = tuple(symbol.limit for symbol in symbols)
    first, others = batch_sizes[0], batch_sizes[1:]
    known: dict[Sizes, int] = {}

    def alone(sizes: Sizes) -> int:
        if sizes not in known:
            known[sizes] = measure(first, sizes)
        return known[sizes]

    most = _MOST_KNOTS[min(len(symbols), len(_MOST_KNOTS)) - 1]
    knots = [_knots(alone, symbols, index, most) for index in range(len(symbols))]
    grid = _grid(knots, alone)
    buckets = list(itertools.product(*[symbol.ceilings for symbol in symbols]))
    durations = {sizes: {first: round(_at(grid, knots, sizes))} for sizes in buckets}
    ends = [sorted({each[0], each[len(each) // 2], each[-1]}) for each in knots]
    for batch_size in others:
        measured = sorted((alone(sizes), measure(batch_size, sizes)) for sizes in _diagonal(ends))
        short, long = zip(*measured, strict=True)
        for seeds in durations.values():
            seeds[batch_size] = max(round(float(np.interp(seeds[first], short, long))), *seeds.values())
    assert limits in durations, "the limits are the last bucket"
    return durations


def _knots(alone: Callable[[Sizes], int], symbols: Sequence[Symbol], index: int, most: int) -> list[int]:
    """Return the ceilings of one symbol between which durations are almost straight."""
    ceilings = symbols[index].ceilings

    def at(size: int) -> int:
        # Beside the smallest of the others, which is quick, what the symbol costs of itself shows.
        return alone(tuple(size if k == index else each.ceilings[0] for k, each in enumerate(symbols)))

    knots = sorted({ceilings[0], ceilings[-1]})
    open_spans = [(0, len(ceilings) - 1)]
    while open_spans and len(knots) < most:
        low, high = open_spans.pop(0)
        if high - low < 2:
            continue
        between = (ceilings[low] + ceilings[high]) / 2
        middle = min(max(bisect_left(ceilings, between), low + 1), high - 1)
        part = (ceilings[middle] - ceilings[low]) / (ceilings[high] - ceilings[low])
        expected = at(ceilings[low]) * (1 - part) + at(ceilings[high]) * part
        found = at(ceilings[middle])
        knots = sorted({*knots, ceilings[middle]})
        if abs(found - expected) > _STRAIGHT * found:
            open_spans += [(low, middle), (middle, high)]
    return knots


def _grid(knots: Sequence[Sequence[int]], alone: Callable[[Sizes], int]) -> Floats:
    shape = [len(each) for each in knots]
    return np.array([alone(sizes) for sizes in itertools.product(*knots)], np.float64).reshape(shape)


def _at(grid: Floats, knots: Sequence[Sequence[int]], sizes: Sizes) -> float:
    """Interpolate on straight lines, one symbol after the other."""
    for each, size in zip(knots, sizes, strict=True):
        flat = grid.reshape(len(each), -1)
        columns = [float(np.interp(size, each, flat[:, column])) for column in range(flat.shape[1])]
        grid = np.array(columns).reshape(grid.shape[1:])
    return float(grid)


def _diagonal(ends: Sequence[Sequence[int]]) -> list[Sizes]:
    """Return the least, the middle and the largest of all symbols."""
    most = max(len(each) for each in ends)
    return [tuple(each[min(place, len(each) - 1)] for each in ends) for place in range(most)]


AUTO = "auto"
"""Value in place of an engine's name: the faster engine."""

_NS_PER_MS = 1e6


class Contender(NamedTuple):
    """An artifact that could be kept, as a judge sees it."""

    engine: str
    executable: str
    """Its SHA-256; two artifacts of one executable, with weights of the same length, take the same time."""
    weights_bytes: int
    put: Callable[[Store, str], Manifest]
    """Stores the whole artifact under a name, as a worker needs it."""


class Judged(NamedTuple):
    """An artifact's performance on its device."""

    infer_ns: Mapping[int, int] = {}
    """Usual duration of an INFER, by batch size."""
    device_kind: str = CPU
    profile: Profile | None = None
    """Seed durations on that kind of device."""
    failed: str = ""
    """Reason why it can't run there; then the other fields are empty."""


Judge = Callable[[Sequence[Contender]], Sequence[Judged]]
"""Returns each contender's performance."""


def per_row_ns(infer_ns: Mapping[int, int]) -> float:
    """Return the geometric mean, over one or more batch sizes, of the time for one row."""
    # A device's clock may be too coarse for a tiny model.
    return statistics.geometric_mean(max(1, ns) / size for size, ns in infer_ns.items())


def fastest(judged: Mapping[str, Judged]) -> str:
    """Return the engine that takes the least time for a row; the first of equals.

    Raises `CompileError`, which gives each engine's reason, if none can run the model.
    """
    able = {engine: per_row_ns(each.infer_ns) for engine, each in judged.items() if not each.failed}
    if not able:
        reasons = "; ".join(f"{engine}: {each.failed}" for engine, each in judged.items())
        raise CompileError(f"no engine can run the model: {reasons}")
    return min(able, key=lambda engine: able[engine])


def describe(judged: Judged) -> str:
    """Describe an artifact's performance, and its device unless it is this CPU; or why it can't run."""
    if judged.failed:
        return f"can't: {judged.failed}"
    per_row_ms = per_row_ns(judged.infer_ns) / _NS_PER_MS
    shown = f"{per_row_ms:.0f}" if per_row_ms >= 100 else f"{per_row_ms:#.3g}"
    where = "" if judged.device_kind == CPU else f" on {judged.device_kind}"
    return f"{shown} ms for each row{where}, over all batch sizes"
