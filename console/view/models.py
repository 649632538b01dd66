"""A model's counts, and the requests that a view remembers: by second, by model, the newest one by one."""

from __future__ import annotations

from array import array
from collections import deque

from mainspring.console.view.requests import IN_TIME, LATE, REJECTED, EndedRequests, Request
from mainspring.console.view.series import SECOND_NS, Limits, ModelSeconds, Point, Seconds
from mainspring.messages.events import RequestArrived

ARRIVED, COUNT_IN_TIME, COUNT_LATE, COUNT_REJECTED, COLD, LOADS, EVICTIONS = range(7)
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


_COUNTED = {IN_TIME: COUNT_IN_TIME, LATE: COUNT_LATE, REJECTED: COUNT_REJECTED}


class Traffic:
    """The part of the view that remembers requests."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.ended = EndedRequests(limits.notable_requests, limits.other_requests)
        self._keep_s = -(-limits.keep_ns // SECOND_NS)
        self.seconds = Seconds(self._keep_s)
        self._models: dict[str, ModelHistory] = {}
        self._counts = Counts(SPAN_NS, -(-limits.keep_ns // SPAN_NS))
        self._demand = Demand()
        self._looked_at = -1
        """Span of `SPAN_NS` in which old records of single models were last dropped."""

    def model(self, name: str) -> ModelHistory:
        """Return what is remembered of a model that is served."""
        known = self._models.get(name)
        if known is None:
            known = self._models[name] = ModelHistory()
        return known

    def forget_model(self, name: str) -> None:
        """Forget a model that is not served any more."""
        self._models.pop(name, None)

    def arrived(self, now_ns: int, event: RequestArrived, *, served: bool) -> None:
        """Count a request that has come; ``served``: whether there is its model."""
        totals = self.seconds.now
        totals.offered += 1
        if event.deadline_ns is not None:
            totals.slos.add(event.deadline_ns - now_ns)
        if served:
            model = self.model(event.model)
            self._counts.add(model, ARRIVED)
            self._demand.add(model)
            self._second(model).offered += 1

    def add(self, request: Request, *, served: bool) -> None:
        """Remember a request that has ended; ``served``: whether there is its model."""
        self.ended.add(request)
        totals, outcome, latency_ns = self.seconds.now, request.outcome, request.latency_ns
        if latency_ns is not None:
            totals.latencies.add(latency_ns)
            totals.late += outcome == LATE
            totals.in_time += outcome == IN_TIME
            totals.cold += request.cold
        elif outcome == REJECTED:
            totals.rejected[request.reason] = totals.rejected.get(request.reason, 0) + 1
        if served:
            self._add_to_model(self.model(request.model), request)

    def turned_away(self, requests: dict[str, int]) -> None:
        """Count requests that a gateway refused itself, by reason."""
        totals = self.seconds.now.turned_away
        for reason, count in requests.items():
            totals[reason] = totals.get(reason, 0) + count

    def _second(self, model: ModelHistory) -> Point:
        """Return what is counted of a model in the second that is going on."""
        return model.seconds.at(self.seconds.number, self._keep_s)

    def _add_to_model(self, model: ModelHistory, request: Request) -> None:
        if model.recent is None:
            model.recent = deque(maxlen=self._limits.requests_of_model)
        model.recent.append(request)
        second = self._second(model)
        if request.outcome in _COUNTED:
            self._counts.add(model, _COUNTED[request.outcome])
            second.in_time += request.outcome == IN_TIME
            second.late += request.outcome == LATE
            second.rejected += request.outcome == REJECTED
        if request.latency_ns is not None:
            second.total_ns += request.latency_ns
            second.longest_ns = max(second.longest_ns, request.latency_ns)
            if request.cold:
                self._counts.add(model, COLD)
            model.took(request.latency_ns)

    def moved(self, now_ns: int, name: str, what: int) -> None:
        """Count that a model was loaded somewhere, or gave its pages up: `LOADS` or `EVICTIONS`."""
        model = self.model(name)
        self._counts.add(model, what)
        if what == LOADS:
            model.last_load_ns = now_ns

    def reach(self, now_ns: int, seconds_passed: int) -> None:
        """Close the seconds that have passed, and forget what is old."""
        self.seconds.reach(now_ns // SECOND_NS)
        self._counts.reach(now_ns)
        for _ in range(min(seconds_passed, 2 * Demand.SECONDS)):
            self._demand.pass_second()
        before_ns = now_ns - self._limits.keep_ns
        self.ended.forget(before_ns)
        # Each model is looked at for it, so not in every second.
        if now_ns // SPAN_NS > self._looked_at:
            self._looked_at = now_ns // SPAN_NS
            for model in self._models.values():
                model.forget(before_ns)
