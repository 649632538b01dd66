"""Counts of bounded size: by name with a bound on the names, and histograms with fixed buckets. Pure.

The busiest names have a label of their own, the rest share one.

Every label is a time series for the server that scrapes, and a cluster has thousands of models. So at most
``limit`` names are in the *top*; what happens to any other name is counted in one shared counter, `OTHER`.
A name that leaves the top keeps its counter, which is not shown until it comes back and then goes on: no
counter ever goes down, and what was counted in one place never moves to another, which would show as a
burst that never was. The sum over the labels shown is therefore not the total since the start; rates are
right at any time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from mainspring.messages.metrics import HistogramCounts
from mainspring.messages.model import ModelSpec

OTHER = "other"
"""Label of all names outside the top; a name that is really called so is never in it."""
RANK_NS = 60_000_000_000
"""Least time between two rankings, so that a name in the top stays there for some scrapes."""
LEAD = 2
"""A name takes another's place if it was this many times as busy: two that are alike don't take turns."""
CHANGES = 4
"""Places for each one that may change hands at one ranking: each change is a new series for the server."""

Counters = TypeVar("Counters")


def model_key(spec: ModelSpec) -> str:
    """Return the name under which a model is counted: what clients call it, and its version.

    A version whose weights were replaced is another model to the scheduler and the same to who watches it.
    """
    return OTHER if spec.public_name == OTHER else f"{spec.version} {spec.public_name}"


def key_labels(key: str) -> tuple[str, str]:
    """Return a key's labels, model and version; the version is empty for `OTHER`."""
    version, _, model = key.rpartition(" ") if key == OTHER else key.partition(" ")
    return model, version


class BoundedLabels(Generic[Counters]):
    """The counters of the names in the top, and of the rest."""

    def __init__(self, limit: int, make: Callable[[], Counters]) -> None:
        """Let at most ``limit`` names have labels of their own; ``make`` returns counters that are all
        zero."""
        self._limit = limit
        self._make = make
        self._top: dict[str, int] = {}
        """Each name's score at the last ranking."""
        self._known: dict[str, Counters] = {}
        """Counters of each name that is in the top or was."""
        self._offered: dict[str, None] = {}
        """Names in the top for which nothing was counted since they came there."""
        self._ranked_ns: int | None = None
        self.other = make()
        """Counters of all names outside the top."""

    def counters(self, name: str) -> Counters:
        """Return where to count for a name from now on, until `rank` says otherwise."""
        if name in self._top:
            self._offered.pop(name, None)
            return self._known[name]
        if name == OTHER:
            return self.other
        if len(self._top) >= self._limit and self._offered:
            self._leave(next(reversed(self._offered)))
        return self._enter(name, 0) if len(self._top) < self._limit else self.other

    def offer(self, names: Iterable[str]) -> None:
        """Give places that are free to the first of these names, which are shown with zeros.

        So what is counted for one is seen to grow from zero. They give way to any name that is counted.
        """
        for name in names:
            if len(self._top) >= self._limit:
                return
            if name not in self._top and name != OTHER:
                self._enter(name, 0)
                self._offered[name] = None

    @property
    def offered(self) -> list[str]:
        """Names that have places from `offer` alone."""
        return list(self._offered)

    def shown(self) -> list[tuple[str, Counters]]:
        """Return every label with its counters, sorted; `OTHER` last."""
        return [*((name, self._known[name]) for name in sorted(self._top)), (OTHER, self.other)]

    def due(self, now_ns: int) -> bool:
        """Say whether it is time for `rank`."""
        return self._ranked_ns is None or now_ns - self._ranked_ns >= RANK_NS

    def rank(self, now_ns: int, activity: Iterable[tuple[str, int]]) -> None:
        """Let busier names take places in the top: the `counters` of any name may be others from now on.

        ``activity``: how often something was counted for a name since the last ranking, where not 0.
        """
        self._ranked_ns = now_ns
        recent = dict(activity)
        for name, score in self._top.items():
            self._top[name] = score // 2 + recent.pop(name, 0)
        recent.pop(OTHER, None)
        outside = sorted(recent, key=lambda name: (-recent[name], name))
        idle = sorted(self._top, key=lambda name: (self._top[name], name))
        for name in outside[: max(1, self._limit // CHANGES)]:
            if len(self._top) >= self._limit:
                if not idle or recent[name] <= LEAD * self._top[idle[0]]:
                    break
                self._leave(idle.pop(0))
            self._enter(name, recent[name])

    def forget(self, name: str) -> None:
        """Free the place of a name that will not come back; its next counters begin at zero."""
        self._leave(name)
        self._known.pop(name, None)

    def _leave(self, name: str) -> None:
        self._top.pop(name, None)
        self._offered.pop(name, None)

    def _enter(self, name: str, score: int) -> Counters:
        self._top[name] = score
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._make()
        return known


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
    """Counts of observations up to each bound, and of those beyond the last.

    An observation costs two additions in one list. The buckets are fixed, so that those of many processes can
    be added, unlike a summary's quantiles.
    """

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
