"""A line through a quantile of measurements: linear quantile regression with one variable.

The line ``intercept + slope * x`` that minimises the check loss ``sum(r * (q - (r < 0)))`` of the residuals
``r`` (Koenker and Bassett, 1978); a share ``q`` of the measurements lies below it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

HALVINGS = 40
"""Steps of the search for the slope; each halves what it may be."""


def quantile_of(values: Sequence[float], quantile: float) -> float:
    """Return the least of the values that at least such a share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]


def quantile_line(points: Sequence[tuple[float, float]], quantile: float) -> tuple[float, float]:
    """Return the intercept and the slope, at least 0, of the line that such a share of the points is below.

    ``points`` are (x, y) of at least two different x; raises ValueError otherwise. For each slope the best
    intercept is the quantile of what is left of y, and the loss is convex in the slope: its derivative's
    sign says on which side of a slope the best one is.
    """
    xs = sorted({x for x, _ in points})
    if len(xs) < 2:
        raise ValueError("a line takes measurements at two different x at least")
    gap = min(after - before for before, after in itertools.pairwise(xs))
    ys = [y for _, y in points]
    low, high = 0.0, (max(ys) - min(ys)) / gap
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _rises(points, quantile, middle):
            high = middle
        else:
            low = middle
    return quantile_of([y - high * x for x, y in points], quantile), high


def _rises(points: Sequence[tuple[float, float]], quantile: float, slope: float) -> bool:
    """Return whether the loss grows with the slope from here on, with the best intercept for each."""
    rest = [(y - slope * x, x) for x, y in points]
    intercept = quantile_of([left for left, _ in rest], quantile)
    pull = weight = on_line = on_line_x = 0.0
    for left, x in rest:
        if left == intercept:
            on_line += 1
            on_line_x += x
        else:
            share = quantile if left > intercept else quantile - 1
            pull += share * x
            weight += share
    # Those on the line share what keeps the intercept where it is.
    return pull - weight * on_line_x / on_line <= 0
