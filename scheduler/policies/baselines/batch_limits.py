"""Limits of a batch's rows, found from how long batches take (Clipper, NSDI '17, section 4.3.1).

"We define the optimal batch size as the batch size that maximizes throughput subject to the constraint that
the batch evaluation latency is under the target SLO." A limit belongs to one model on one worker, since
Clipper adapts it "independently for each replica" (section 4.4.1).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

QUANTILE = 0.99
"""The paper estimates "the 99th-percentile (P99) latency as a function of batch size"."""
REFIT_EVERY = 20
"""Measurements between two estimates of the line."""
REACH = 2
"""Factor by which a line is trusted beyond what was measured."""


class BatchLimit(ABC):
    """The most rows of a batch, as far as it is known."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = 1
        """The most rows of a batch, at least 1."""

    @abstractmethod
    def measured(self, rows: int, size: int, latency_ns: int, objective_ns: int) -> None:
        """Learn from a batch of ``rows`` that ran in a compiled size: how long it took, and may take."""


class SingleRow(BatchLimit):
    """No batching: what the paper compares with."""

    __slots__ = ()

    def measured(self, rows: int, size: int, latency_ns: int, objective_ns: int) -> None:
        """Learn nothing."""


class AimdLimit(BatchLimit):
    """Additive increase, multiplicative decrease: the paper's default.

    "We additively increase the batch size by a fixed amount until the latency to process a batch exceeds the
    latency objective. At this point, we perform a small multiplicative backoff, reducing the batch size by
    10%." Only a full batch says that the limit may grow.
    """

    __slots__ = ("_backoff", "_limit", "_most_rows", "_step")

    def __init__(self, most_rows: int, step: float, backoff: float) -> None:
        """Begin at one row and stay below ``most_rows``; ``backoff`` is the share that is taken off."""
        super().__init__()
        self._limit = 1.0
        self._most_rows = float(most_rows)
        self._step = step
        self._backoff = backoff

    def measured(self, rows: int, size: int, latency_ns: int, objective_ns: int) -> None:
        """Back off if the batch took too long, else grow if it was full."""
        if latency_ns > objective_ns:
            self._limit = max(1.0, self._limit * (1.0 - self._backoff))
        elif rows >= self.rows:
            self._limit = min(self._most_rows, self._limit + self._step)
        self.rows = int(self._limit)


class QuantileLimit(BatchLimit):
    """The largest compiled size whose 99th percentile, by a line through the latest latencies, is in time.

    "Early performance measurements suggested a stable linear relationship between batch size and latency";
    so sizes that never ran are judged by the line too, up to `REACH` times the largest of the latest. Until
    two sizes were measured the limit grows from each size to the next. While all of the latest batches are
    of one size, the line keeps its slope.
    """

    __slots__ = ("_intercept", "_points", "_refit_in", "_sizes", "_slope")

    def __init__(self, sizes: tuple[int, ...], window: int) -> None:
        """Choose among compiled sizes by the latest ``window`` measurements."""
        super().__init__()
        self.rows = sizes[0]
        self._sizes = sizes
        self._points: deque[tuple[float, float]] = deque(maxlen=window)
        self._slope: float | None = None
        self._intercept = 0.0
        self._refit_in = 0

    def measured(self, rows: int, size: int, latency_ns: int, objective_ns: int) -> None:
        """Take the batch into the measurements, and choose the limit from them."""
        new = all(size != known for known, _ in self._points)
        self._points.append((float(size), float(latency_ns)))
        self._refit_in -= 1
        if new or self._refit_in <= 0:
            self._refit_in = REFIT_EVERY
            self._refit()
        if self._slope is not None:
            reach = REACH * max([known for known, _ in self._points])
            most = (objective_ns - self._intercept) / self._slope if self._slope else reach
            within = bisect_right(self._sizes, min(most, reach)) if self._intercept <= objective_ns else 0
            self.rows = self._sizes[max(0, within - 1)]
        elif latency_ns <= objective_ns and rows >= self.rows:
            self.rows = next((each for each in self._sizes if each > size), self._sizes[-1])

    def _refit(self) -> None:
        """Lay the line through the latest measurements, as far as they determine it."""
        points = list(self._points)
        if len({size for size, _ in points}) > 1:
            self._intercept, self._slope = quantile_line(points, QUANTILE)
        elif self._slope is not None:
            slope = self._slope
            self._intercept = quantile_of([latency - slope * size for size, latency in points], QUANTILE)


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
