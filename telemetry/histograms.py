"""Histograms that cost a request next to nothing: two additions in one list. Pure.

A histogram's buckets are fixed, so that those of many processes can be added (unlike a summary's quantiles).
"""

from __future__ import annotations

from bisect import bisect_left

from mainspring.messages.metrics import HistogramCounts

_MS = 1_000_000

LATENCY_BOUNDS_NS = tuple(
    round(ms * _MS)
    for ms in (0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 25, 50, 75, 100, 150, 250, 500, 1_000, 2_500, 10_000)
)
"""Bounds for latencies: dense where deadlines are."""
SLACK_BOUNDS_NS = tuple(
    round(ms * _MS)
    for ms in (-1_000, -100, -25, -5, -1, 0, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 10_000)
)
"""Bounds for the time left to a deadline; a negative one is late."""
ERROR_BOUNDS_NS = tuple(
    round(ms * _MS)
    for ms in (
        *(-100, -25, -10, -5, -2.5, -1, -0.5, -0.25, -0.1, -0.05, 0),
        *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 100),
    )
)
"""Bounds for predicted less actual durations: negative where an action took longer than predicted."""
HOST_BOUNDS_NS = tuple(
    round(ms * _MS) for ms in (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10, 100)
)
"""Bounds for the host's part of an action: tens of microseconds where nothing disturbs it."""
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bounds for batch sizes."""


class Histogram:
    """Counts of observations up to each bound, and of those beyond the last."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        """``bounds`` ascend; an observation equal to one belongs below it."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0
        """Sum of all observations."""

    def observe(self, value: int) -> None:
        """Count an observation in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Observations in all."""
        return sum(self.counts)

    def state(self) -> HistogramCounts:
        """Return what was counted, to be sent."""
        return HistogramCounts(tuple(self.counts), self.sum)
