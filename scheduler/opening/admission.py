"""Admission and order of requests while OPENs keep workers from what they hold.

A worker that opens an executable leaves its work to others, besides their own. If requests were accepted as
elsewhere, where each could be in time before all others, more would be than the others can do. So each is
accepted by an `Forecast` on all that waits, from when an OPEN is announced until the worker has been back for
as long as it opened. And a policy's batch goes first only if no more requests are late by it than behind the
one that is due first.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.timeline import NEVER_NS
from mainspring.cluster.workers import Worker
from mainspring.scheduler.opening.forecast import Forecast
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.state import SchedulerState

ENTRY_NS: Final = 2_000
"""Least time between two forecasts, for each request that waits: a forecast costs a part of that."""


class AdmissionWhileOpening:
    """Counts OPENs of workers that hold models, and what was accepted."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._announced: dict[str, int] = {}
        """Duration of each worker's OPEN that is announced."""
        self._opening: dict[str, None] = {}
        """The workers that open."""
        self.until_ns = 0
        """Instant until which requests are accepted by `refusal` too."""
        self._forecast: Forecast | None = None
        self._next_ns = 0
        """Instant from which on a new forecast is made for a request."""
        self._next_order_ns = 0
        """Instant from which on a new forecast is made for a batch."""

    def announce(self, worker: Worker, duration_ns: int) -> None:
        """Count an OPEN that is not sent yet."""
        self._announced[worker.name] = duration_ns
        self.until_ns = NEVER_NS

    def begin(self, worker: Worker) -> None:
        """Count an OPEN that is sent."""
        self._announced.pop(worker.name, None)
        if worker.lru:
            self._opening[worker.name] = None
        self._count_until(0)

    def end(self, worker: Worker, until_ns: int = 0) -> None:
        """Count a worker's OPEN no more: it has ended, or is not wanted any more."""
        known = worker.name in self._opening or worker.name in self._announced
        self._announced.pop(worker.name, None)
        self._opening.pop(worker.name, None)
        if known:
            self._count_until(until_ns)

    def refusal(self, now_ns: int, model: Model, rows: int, due_ns: int) -> str:
        """Return why a request is refused that could be in time alone; "" if no more are late with it.

        To be asked until `until_ns`. A forecast on many requests is used for a while; meanwhile only requests
        for models of a worker that opens are held against it.
        """
        if now_ns >= self._next_ns or self._forecast is None:
            self._next_ns = now_ns + ENTRY_NS * self._state.cluster.queued
            self._forecast = forecast = self._new(now_ns)
            forecast.place_all(model, rows, due_ns)
            if not forecast.late:
                return ""
            without = self._new(now_ns)
            without.place_all()
            if forecast.late <= without.late:
                return ""
            self._forecast = without
        elif not self._affects(model) or self._forecast.add(model, rows, due_ns):
            return ""
        return f"no worker has time left for it before it is due: {self._why()}"

    def first_of(self, now_ns: int, worker: Worker, batch: Batch, other: Batch) -> Batch:
        """Return a policy's batch, or another if fewer requests that wait are late behind that one.

        It is ``other``, which has the request that is due first, or this request alone.
        """
        if now_ns < self._next_order_ns:
            return batch
        self._next_order_ns = now_ns + ENTRY_NS * self._state.cluster.queued
        best, least = batch, self._late_behind(now_ns, worker, batch)
        first = other.requests[0]
        alone = Batch(other.placement, other.placement.model.index_of[first.rows], [first])
        for each in (other, alone):
            if least and (each.size_index != best.size_index or first is not best.requests[0]):
                late = self._late_behind(now_ns, worker, each)
                if late < least:
                    best, least = each, late
        return best

    def _late_behind(self, now_ns: int, worker: Worker, batch: Batch) -> int:
        """Return how many requests that wait are late if a worker begins with a batch."""
        busy_ns = {worker.name: batch.placement.times.ns[batch.size_index]}
        forecast = Forecast(self._state, now_ns, {**self._announced, **busy_ns}, spare=False)
        forecast.place_all(taken=batch)
        return forecast.late

    def _new(self, now_ns: int) -> Forecast:
        return Forecast(self._state, now_ns, self._announced)

    def _affects(self, model: Model) -> bool:
        """Return whether a worker that opens holds a model."""
        return any([name in self._opening for name in model.usable])  # noqa: C419 - compiled, a list is quicker

    def _why(self) -> str:
        names = sorted([*self._opening, *self._announced])
        if not names:
            return "a worker has just opened an executable"
        return f"{', '.join(names)} {'opens an executable' if len(names) == 1 else 'open executables'}"

    def _count_until(self, at_ns: int) -> None:
        """Count until an instant, or for as long as there are OPENs."""
        self.until_ns = NEVER_NS if self._opening or self._announced else max(at_ns, self.until_ns % NEVER_NS)
        self._next_ns = self._next_order_ns = 0
