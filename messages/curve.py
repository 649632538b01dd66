"""The duration of a batch at each size of a model's symbols, between the ceilings that were profiled.

Within a bucket durations follow this curve: the scheduler learns what a bucket takes at its ceilings, and
predicts a batch by its own sizes (`Curve.share`); emulated and simulated devices take just these times. A
profile has noise, so a curve never falls, and falls below a bucket's ceiling no further than is plausible.
Where every batch runs at its bucket's ceilings there is nothing between them: the curve is their durations.
Integers only: every reader of a log finds the same.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

from mainspring.messages.model import ModelSpec, Profile, bucket_name

LEAST_PART = 2
"""Divisor of a batch's time at a symbol's first ceiling: at least that part of it, half, does not depend on
its size."""
_Grid = npt.NDArray[np.int64]


class Curve:
    """Durations by batch size and sizes: straight between ceilings, and never shorter for a larger size.

    Below the first ceiling of a symbol the line goes on, less steep if the symbol's whole range is. If every
    batch runs at ceilings, durations are those of the bucket's, at any sizes within it.
    """

    def __init__(self, spec: ModelSpec, profile: Profile) -> None:
        """``profile`` is of a model with symbols; a bucket that it lacks takes as long as the limits."""
        self.profile = profile
        ladders = [symbol.ceilings for symbol in spec.symbols]
        shape = [len(ladder) for ladder in ladders]
        names = [bucket_name(ceilings) for ceilings in itertools.product(*ladders)]
        self._ladders = [(0, *ladder) for ladder in ladders]
        self._steps = [math.prod(each + 1 for each in shape[index + 1 :]) for index in range(len(shape))]
        self._grids: dict[int, tuple[list[int], int | None]] = {}
        """Durations, and with which power of the sizes they may grow within a bucket; None if not at all."""
        for batch_size, limit_ns in profile.infer_ns.items():
            known = [profile.shaped.get(name, {}).get(batch_size, limit_ns) for name in names]
            grid = np.array(known, np.int64).reshape(shape).clip(1)
            if spec.at_ceilings:
                at_ceilings = np.pad(grid, [(1, 0)] * grid.ndim, "edge")
                self._grids[batch_size] = at_ceilings.ravel().tolist(), None
                continue
            grid = _rising(grid)
            power = _power(grid, ladders)
            for axis, ladder in enumerate(ladders):
                grid = _begun(grid, axis, ladder)
            self._grids[batch_size] = _rising(grid).ravel().tolist(), power

    def share(self, batch_size: int, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the durations at these sizes and at their bucket's ceilings, which is no shorter.

        Sizes are within the symbols' limits. Both are 1 for a batch size that was not profiled.
        """
        found = self._grids.get(batch_size)
        if found is None:
            return 1, 1
        grid, power = found
        at, ceiling = 0, 1
        for ladder, step, size in zip(self._ladders, self._steps, sizes, strict=True):
            index = bisect_left(ladder, size)
            at += index * step
            ceiling *= ladder[index]
        if power is None:
            return grid[at], grid[at]
        # The quotient is rounded up.
        least_ns = -(-grid[at] * math.prod(sizes) ** power // ceiling**power)
        return max(least_ns, self._between(grid, sizes, 0, 0)), grid[at]

    def _between(self, grid: list[int], sizes: tuple[int, ...], symbol: int, at: int) -> int:
        """Interpolate over a symbol and those behind it; ``at`` is the place in the grid by those before."""
        if symbol == len(sizes):
            return grid[at]
        ladder, step, size = self._ladders[symbol], self._steps[symbol], sizes[symbol]
        upper = bisect_left(ladder, size)
        upper_ns = self._between(grid, sizes, symbol + 1, at + upper * step)
        if size == ladder[upper]:
            return upper_ns
        lower_ns = self._between(grid, sizes, symbol + 1, at + (upper - 1) * step)
        part, of = size - ladder[upper - 1], ladder[upper] - ladder[upper - 1]
        return lower_ns + (upper_ns - lower_ns) * part // of


def _rising(grid: _Grid) -> _Grid:
    """Return the grid with no duration below that of smaller sizes."""
    for axis in range(grid.ndim):
        grid = np.maximum.accumulate(grid, axis=axis)
    return grid


def _power(grid: _Grid, ladders: list[tuple[int, ...]]) -> int:
    """Return with which power of the sizes durations may grow within a bucket.

    1, or 2 as attention does if they grow faster than the sizes from the first to the last bucket: a span
    that is wide enough for noise not to matter.
    """
    first, last = (math.prod(ladder[end] for ladder in ladders) for end in (0, -1))
    return 2 if int(grid.flat[-1]) * first > int(grid.flat[0]) * last else 1


def _begun(grid: _Grid, axis: int, ladder: tuple[int, ...]) -> _Grid:
    """Return the grid with the durations that a symbol's size of 0 would have, before its first ceiling."""
    first = grid.take([0], axis)
    fall: Any = 0
    if len(ladder) > 1:
        second, last = grid.take([1], axis), grid.take([-1], axis)
        near = (second - first) * ladder[0] // (ladder[1] - ladder[0])
        fall = np.minimum(near, (last - first) * ladder[0] // (ladder[-1] - ladder[0]))
    return np.concatenate([np.maximum(first - fall, -(-first // LEAST_PART)), grid], axis)
