"""Requests as they come, wait, run and end, and what is counted of them."""

from __future__ import annotations

from collections import deque

from mainspring.console.view.actions import Action
from mainspring.console.view.fleet import Fleet
from mainspring.console.view.limits import SECOND_NS, Limits
from mainspring.console.view.models import (
    ARRIVED,
    COLD,
    LATENCIES,
    SPAN_NS,
    Counts,
    Demand,
    ModelState,
)
from mainspring.console.view.models import IN_TIME as COUNT_IN_TIME
from mainspring.console.view.models import LATE as COUNT_LATE
from mainspring.console.view.models import REJECTED as COUNT_REJECTED
from mainspring.console.view.requests import (
    CANCELLED,
    IN_TIME,
    LATE,
    LOST,
    REJECTED,
    RUNNING,
    WAITING,
    Request,
    RequestBook,
)
from mainspring.console.view.seconds import Seconds
from mainspring.messages.actions import Infer
from mainspring.messages.codes import Reason
from mainspring.messages.commands import Reject
from mainspring.messages.events import RequestArrived
from mainspring.messages.ids import gateway_of

LOST_AFTER_NS = 30 * SECOND_NS
"""A request with a deadline of which nothing was heard for so long past it is lost."""


class Traffic:
    """The part of the view that follows requests."""

    def __init__(self, limits: Limits, fleet: Fleet) -> None:
        self._limits = limits
        self._fleet = fleet
        self._begin()

    def _begin(self) -> None:
        limits = self._limits
        self.book = RequestBook(limits.notable_requests, limits.other_requests)
        self.seconds = Seconds(-(-limits.keep_ns // SECOND_NS))
        self._counts = Counts(SPAN_NS, -(-limits.keep_ns // SPAN_NS))
        self._demand = Demand()
        self._unsure: dict[int, Request] = {}

    def forget(self, keep_history: bool) -> None:
        """Forget which requests wait and run; also those that ended unless history is kept."""
        if keep_history:
            self._unsure = self.book.open
            self.book.open = {}
        else:
            self._begin()

    # --- what goes into the scheduler ---

    def arrived(self, now_ns: int, seq: int, event: RequestArrived, live: bool) -> None:
        """A request has come; one that is not ``live`` came before the picture that tells of it."""
        request_id, book = event.request_id, self.book
        if request_id in book.open or book.ended(request_id):
            return
        model = self._fleet.model(event.model)
        known = self._unsure.pop(request_id, None)
        if known is None:
            known = Request(
                *(request_id, model.name, event.rows, event.priority),
                *(now_ns, seq, event.deadline_ns, model.spec),
            )
            if model.recent is None:
                model.recent = deque(maxlen=self._limits.requests_of_model)
            model.recent.append(known)
            if live:
                self._count_arrival(model, known)
        known.outcome = WAITING
        book.open[request_id] = known
        model.queued += 1

    def cancelled(self, now_ns: int, seq: int, request_id: int) -> None:
        """Nobody waits for a request any more."""
        request = self.book.open.get(request_id)
        if request is not None:
            self._end(now_ns, seq, request, CANCELLED)

    def gateway_left(self, now_ns: int, seq: int, number: int) -> None:
        """Nobody waits for the requests of a gateway."""
        gone = [request for id_, request in self.book.open.items() if gateway_of(id_) == number]
        for request in gone:
            request.reason = "gateway_left"
            self._end(now_ns, seq, request, CANCELLED)

    # --- what comes out of it ---

    def dispatched(self, action: Infer) -> None:
        """Requests were sent to a worker as one batch."""
        open_, known = self.book.open, self._fleet.known
        for request_id, cold in zip(action.request_ids, action.cold, strict=False):
            request = open_.get(request_id)
            if request is None:
                continue
            if request.outcome == WAITING:
                model = known(request.model)
                if model is not None:
                    model.queued -= 1
            request.outcome, request.worker, request.action_id = RUNNING, action.worker, action.action_id
            request.cold, request.evidence = cold, action.evidence

    def executed(self, seq: int, action: Action) -> None:
        """An INFER ended well; its requests have ended when EXEC did."""
        open_, models, totals = self.book.open, self._fleet.models, self.seconds.now
        end_ns = action.end_ns
        for request_id in action.requests:
            request = open_.get(request_id)
            if request is None:
                continue
            late = request.deadline_ns is not None and end_ns > request.deadline_ns
            self._end(end_ns, seq, request, LATE if late else IN_TIME)
            totals.latencies.add(end_ns - request.arrived_ns)
            totals.late += late
            totals.in_time += not late
            totals.cold += request.cold
            model = models.get(request.model)
            if model is not None:
                self._counts.add(model, COUNT_LATE if late else COUNT_IN_TIME)
                if request.cold:
                    self._counts.add(model, COLD)
                if model.latencies_ns is None:
                    model.latencies_ns = deque(maxlen=LATENCIES)
                model.latencies_ns.append(end_ns - request.arrived_ns)

    def moved(self, name: str, what: int) -> None:
        """A model was loaded somewhere, or gave its pages up: `LOADS` or `EVICTIONS`."""
        model = self._fleet.models.get(name)
        if model is not None:
            self._counts.add(model, what)

    def failed(self, seq: int, worker: str, action: Action) -> None:
        """An INFER ended without outputs; its requests wait again until more is heard of them."""
        for request_id in action.requests:
            request = self.book.open.get(request_id)
            if request is None or request.outcome != RUNNING or request.action_id != action.id:
                continue
            request.outcome = WAITING
            request.tries = (*request.tries[-15:], (worker, seq))
            model = self._fleet.known(request.model)
            if model is not None:
                model.queued += 1

    def rejected(self, now_ns: int, seq: int, command: Reject) -> Request | None:
        """A request is not served; return it if it was waited for."""
        request = self.book.open.get(command.request_id)
        if request is None:
            return None
        reason = command.reason
        request.reason, request.detail = reason.value, command.detail
        request.earliest_finish_ns = command.earliest_finish_ns
        request.evidence = command.evidence
        self._end(now_ns, seq, request, REJECTED)
        rejected = self.seconds.now.rejected
        rejected[reason.value] = rejected.get(reason.value, 0) + 1
        model = self._fleet.models.get(request.model)
        if model is not None:
            self._counts.add(model, COUNT_REJECTED)
        elif reason is Reason.UNKNOWN_MODEL:
            self._fleet.no_such_model(request.model)
        return request

    # --- time passes ---

    def reach(self, now_ns: int, seq: int, seconds_passed: int) -> None:
        """So many seconds have ended."""
        self.seconds.reach(now_ns // SECOND_NS)
        self._counts.reach(now_ns)
        for _ in range(min(seconds_passed, 2 * Demand.SECONDS)):
            self._demand.pass_second()
        before_ns = now_ns - self._limits.keep_ns
        self.book.forget(before_ns)
        overdue_ns = now_ns - LOST_AFTER_NS
        over = len(self.book.open) - self._limits.open_requests
        lost = [
            request
            for index, request in enumerate(self.book.open.values())
            if index < over or (request.deadline_ns is not None and request.deadline_ns < overdue_ns)
        ]
        for request in lost:
            self._end(now_ns, seq, request, LOST)
        if self._unsure and next(iter(self._unsure.values())).arrived_ns < overdue_ns:
            self._unsure = {}

    # --- within ---

    def _count_arrival(self, model: ModelState, request: Request) -> None:
        totals = self.seconds.now
        totals.offered += 1
        if request.deadline_ns is not None:
            totals.slos.add(request.deadline_ns - request.arrived_ns)
        if model.name in self._fleet.models:
            self._counts.add(model, ARRIVED)
            self._demand.add(model)

    def _end(self, at_ns: int, seq: int, request: Request, outcome: str) -> None:
        if request.outcome == WAITING:
            model = self._fleet.known(request.model)
            if model is not None:
                model.queued -= 1
        request.outcome, request.ended_ns, request.ended_seq = outcome, at_ns, seq
        self.book.end(request)
