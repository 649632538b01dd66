"""Outcomes of requests: by second, by model, and the newest one by one."""

from __future__ import annotations

from collections import deque

from mainspring.console.view.limits import SECOND_NS, Limits
from mainspring.console.view.models import (
    ARRIVED,
    COLD,
    LOADS,
    SPAN_NS,
    Counts,
    Demand,
    ModelHistory,
)
from mainspring.console.view.models import IN_TIME as COUNT_IN_TIME
from mainspring.console.view.models import LATE as COUNT_LATE
from mainspring.console.view.models import REJECTED as COUNT_REJECTED
from mainspring.console.view.requests import IN_TIME, LATE, REJECTED, EndedRequests, Request
from mainspring.console.view.seconds import Seconds
from mainspring.console.view.series import Point
from mainspring.messages.events import RequestArrived

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
