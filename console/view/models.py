"""Recent outcomes of each model's requests, and how often it moved: counts and windows beside the fold."""

from __future__ import annotations

from array import array
from collections import deque

from mainspring.console.view.limits import SECOND_NS
from mainspring.console.view.requests import Request
from mainspring.console.view.series import ModelSeconds

ARRIVED, IN_TIME, LATE, REJECTED, COLD, LOADS, EVICTIONS = range(7)
"""Indices of a model's counts: its requests, and how often it was loaded and evicted."""
LATENCIES = 128
"""Number of a model's newest requests whose latencies are remembered."""
_LONGEST_NS = (1 << 63) - 1
SPAN_NS = 10_000_000_000
"""Length of the steps in which old counts are dropped."""


class ModelHistory:
    """The recent history of one model."""

    __slots__ = ("counts", "demand", "last_load_ns", "latencies_ns", "recent", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (EVICTIONS + 1)
        """Counts over the last minutes, by `ARRIVED` and the others."""
        self.latencies_ns = array("q")
        """Latencies of its newest requests that were executed, at most `LATENCIES`, the newest last."""
        self.demand = 0
        """Arrivals in the last ten whole seconds."""
        self.recent: deque[Request] | None = None
        """Its requests that ended last, the newest last; None if none is remembered."""
        self.last_load_ns: int | None = None
        """Instant at which its last LOAD was sent."""
        self.seconds = ModelSeconds()

    def took(self, latency_ns: int) -> None:
        """Remember how long a request took that was executed."""
        latencies_ns = self.latencies_ns
        latencies_ns.append(max(0, min(latency_ns, _LONGEST_NS)))
        if len(latencies_ns) > LATENCIES:
            del latencies_ns[0]

    def forget(self, before_ns: int) -> None:
        """Forget the requests that ended before an instant, and what became of any before its second."""
        self.seconds.forget(before_ns // SECOND_NS)
        recent = self.recent
        while recent and recent[0].ended_ns < before_ns:
            recent.popleft()
        if not recent:
            self.recent = None


class Counts:
    """Counts by model that are dropped again when they are old."""

    def __init__(self, span_ns: int, spans: int) -> None:
        """Count in steps of ``span_ns``, the present one and ``spans`` before it."""
        self._span_ns = span_ns
        self._spans = spans
        self._number = -1
        self._old: deque[dict[ModelHistory, list[int]]] = deque()
        self._new: dict[ModelHistory, list[int]] = {}

    def add(self, model: ModelHistory, what: int) -> None:
        """Count one thing of a model."""
        model.counts[what] += 1
        counts = self._new.get(model)
        if counts is None:
            counts = self._new[model] = [0] * (EVICTIONS + 1)
        counts[what] += 1

    def reach(self, now_ns: int) -> None:
        """Drop what is old by now."""
        number = now_ns // self._span_ns
        if self._number < 0:
            self._number = number
        for _ in range(min(number - self._number, self._spans + 1)):
            self._old.append(self._new)
            self._new = {}
            if len(self._old) > self._spans:
                self._drop(self._old.popleft())
        self._number = max(self._number, number)

    @staticmethod
    def _drop(old: dict[ModelHistory, list[int]]) -> None:
        for model, counts in old.items():
            totals = model.counts
            for what, count in enumerate(counts):
                totals[what] -= count


class Demand:
    """Arrivals by model over the last ten whole seconds."""

    SECONDS = 10

    def __init__(self) -> None:
        self._old: deque[dict[ModelHistory, int]] = deque()
        self._new: dict[ModelHistory, int] = {}

    def add(self, model: ModelHistory) -> None:
        """Count an arrival."""
        self._new[model] = self._new.get(model, 0) + 1

    def pass_second(self) -> None:
        """Close the present second."""
        for model, count in self._new.items():
            model.demand += count
        self._old.append(self._new)
        self._new = {}
        if len(self._old) > self.SECONDS:
            for model, count in self._old.popleft().items():
                model.demand -= count
