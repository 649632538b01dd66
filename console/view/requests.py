"""Requests as the console shows them: those that are open, from the fold, and the newest that have ended."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from mainspring.cluster.requests import Place, choice_of, step_of
from mainspring.cluster.requests import Request as OpenRequest
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Evidence, RejectEvidence
from mainspring.telemetry.lifecycles import RequestLife, infer_of

WAITING, RUNNING = "waiting", "running"
IN_TIME, LATE, REJECTED, CANCELLED, LOST = "in_time", "late", "rejected", "cancelled", "lost"
NOTABLE = (REJECTED, LATE)
"""Outcomes that operators ask about; requests of these have a ring of their own."""
LOST_AFTER_NS = 30_000_000_000
"""An open request counts as lost this long after its deadline."""


class Request(msgspec.Struct, gc=False):
    """One request."""

    id: int
    model: str
    rows: int
    priority: int
    arrived_ns: int
    deadline_ns: int | None
    outcome: str = WAITING
    reason: str = ""
    detail: str = ""
    earliest_finish_ns: int | None = None
    """Earliest instant at which it could have ended, as in `Reject.earliest_finish_ns`."""
    evidence: Evidence | RejectEvidence | None = None
    """Evidence from which its last INFER, or its rejection, was computed."""
    ended_ns: int = 0
    """End of EXEC, or when it was rejected or cancelled; 0 before."""
    ended_seq: int = 0
    """Number of the record of the stream by which it ended (`View.seq`); 0 before."""
    cold: bool = False
    """True if its model was resident nowhere when it arrived."""
    worker: str = ""
    """Worker to which its last INFER was sent."""
    action_id: int = 0
    """Id of that INFER; 0 if there was none."""
    attempts: int = 0
    """INFERs that it was in."""
    query: int = 0
    """The query that it is a piece of; 0 if it is of none."""
    step: str = ""
    """The step of a graph that it is a piece of, ``text.find``; the graph, if all was refused on arrival."""
    chosen: str = ""
    """Reason why it is of its member of a family."""

    @property
    def latency_ns(self) -> int | None:
        """Return the time from arrival at the controller to EXEC's end; None unless it was executed."""
        return self.ended_ns - self.arrived_ns if self.outcome in (IN_TIME, LATE) else None


def ended(life: RequestLife, seq: int) -> Request:
    """Return a request that has ended with a record of the stream."""
    event, infer = life.request, life.infer
    return Request(
        *(event.request_id, event.model, event.rows, event.priority, life.arrived_ns, event.deadline_ns),
        *(life.outcome, life.reason, life.detail, life.earliest_finish_ns, life.evidence),
        ended_ns=life.ended_ns or 0,
        ended_seq=seq,
        cold=life.cold,
        worker="" if infer is None else infer.action.worker,
        action_id=0 if infer is None else infer.action.action_id,
        attempts=life.attempts,
        query=event.query,
        step=life.step,
        chosen=life.chosen,
    )


def still_open(cluster: Cluster, request: OpenRequest, now_ns: int) -> Request:
    """Return a request that has not ended, as it stands."""
    event = request.event
    found = Request(
        *(request.id, event.model, event.rows, event.priority, request.arrived_ns, event.deadline_ns)
    )
    if request.place is Place.DISPATCHED:
        found.outcome = RUNNING
        infer = infer_of(cluster, request)
        if infer is not None:
            found.worker, found.action_id, found.evidence = infer.worker, infer.action_id, infer.evidence
    if is_lost(request, now_ns):
        found.outcome = LOST
    found.cold, found.query, found.step = request.cold, event.query, step_of(request)
    found.chosen = choice_of(request)
    return found


def is_lost(request: OpenRequest, now_ns: int) -> bool:
    """Return whether an open request should have been answered long ago."""
    deadline_ns = request.event.deadline_ns
    return deadline_ns is not None and deadline_ns < now_ns - LOST_AFTER_NS


class EndedRequests:
    """The newest requests that have ended."""

    def __init__(self, notable: int, others: int) -> None:
        """Remember at most ``notable`` that were rejected or late, and ``others`` beside them."""
        self._most = {True: notable, False: others}
        self._rings: dict[bool, deque[Request]] = {True: deque(), False: deque()}
        self._ended: dict[int, Request] = {}

    def get(self, request_id: int) -> Request | None:
        """Return a request by id."""
        return self._ended.get(request_id)

    def add(self, request: Request) -> None:
        """Remember a request that has ended."""
        notable = request.outcome in NOTABLE
        ring = self._rings[notable]
        ring.append(request)
        self._ended[request.id] = request
        if len(ring) > self._most[notable]:
            self._forget(ring.popleft())

    def newest(self, outcomes: Iterable[str], model: str = "") -> Iterator[Request]:
        """Yield the requests of these outcomes, the newest first."""
        wanted = tuple(outcomes)
        rings = [reversed(self._rings[key]) for key in (True, False) if self._concerns(key, wanted)]
        for request in heapq.merge(*rings, key=lambda each: each.ended_seq, reverse=True):
            if request.outcome in wanted and (not model or request.model == model):
                yield request

    def of_query(self, query_id: int) -> list[Request]:
        """Return what is remembered of a query's pieces."""
        return [request for request in self._ended.values() if request.query == query_id]

    def ids(self) -> Iterator[int]:
        """Yield the ids of all that are remembered."""
        return iter(self._ended)

    def forget(self, before_ns: int) -> None:
        """Forget what ended before an instant."""
        for ring in self._rings.values():
            while ring and ring[0].ended_ns < before_ns:
                self._forget(ring.popleft())

    def __len__(self) -> int:
        """Return how many requests are remembered."""
        return len(self._ended)

    def _forget(self, request: Request) -> None:
        if self._ended.get(request.id) is request:
            del self._ended[request.id]

    @staticmethod
    def _concerns(notable: bool, wanted: tuple[str, ...]) -> bool:
        return any((outcome in NOTABLE) == notable for outcome in wanted)
