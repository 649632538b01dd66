"""Durations of every bucket of a model with symbols, from few measurements.

At the smallest batch size, each symbol's ceilings are measured where the slope of the duration changes: a
ceiling is interpolated if half way between its neighbours the straight line was right. With several symbols
all combinations of these knots are measured. Other batch sizes are measured at the ends and in the middle;
what they take at other shapes follows from what the smallest one takes there, on straight lines.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mainspring.messages.model import Symbol

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
