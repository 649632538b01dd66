"""The fold, and what ends with each record: actions with their results, requests with their outcomes. Pure.

`Lifecycles` keeps a `cluster.state.Cluster` true to the records of a stream (`cluster.follow`). Before it
enters a record it looks up what will end with it, and hands that out once the record is entered. So memory
holds the cluster as it stands, and nothing that has ended.

A stream may begin in the middle: the log's size bound deletes the oldest segments. Actions whose beginning is
missing are left out then, and so are requests whose arrival is. An arrival for a model that is not served, or
of which nothing is known yet, is kept beside the cluster until the request ends.

Outcomes are the controller's: a request is in time if EXEC ended by its deadline, which leaves out the way of
the outputs back to the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from mainspring.cluster.apply import requests_of
from mainspring.cluster.follow import follow
from mainspring.cluster.requests import Place, Query, Request, choice_of, step_of
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import (
    Action,
    DropWorker,
    Evidence,
    Infer,
    Reject,
    RejectEvidence,
    Result,
    kind_of,
    model_of,
)
from mainspring.messages.codes import Status
from mainspring.messages.events import GatewayLeft, RequestArrived, RequestCancelled, WorkerJoined, WorkerLeft
from mainspring.messages.ids import gateway_of
from mainspring.telemetry.entries import SegmentHeader, Settings

OPEN_OUTCOMES: Final = ("waiting", "running")
"""Outcomes of requests that had not ended when the stream did."""
_GONE: Final = Place.GONE
_DISPATCHED: Final = Place.DISPATCHED


class ActionLife:
    """An action from its command to its result."""

    def __init__(self, action: Action, sent_ns: int) -> None:
        self.action = action
        self.sent_ns = sent_ns
        self.result: Result | None = None
        self.ended_ns: int | None = None
        """Instant at which its result passed the controller, or its worker was lost; None if outstanding."""
        self.lost = ""
        """Reason why no result will come: its worker is gone. Empty otherwise."""

    @property
    def model(self) -> str:
        """Name of the model that it is about."""
        return model_of(self.action)

    @property
    def kind(self) -> str:
        """``INFER``, ``LOAD``, ``UNLOAD``, ``PREPARE`` or ``RELEASE``."""
        return kind_of(self.action)

    @property
    def status(self) -> str:
        """A `messages.codes.Status`, ``lost`` with its worker, or empty while it is outstanding."""
        if self.result is not None:
            return self.result.status.value
        return "lost" if self.lost else ""


class RequestLife:
    """A request from its arrival to its end."""

    def __init__(self, request: RequestArrived, arrived_ns: int) -> None:
        self.request = request
        self.step = ""
        """The step of a graph that it is a piece of (`cluster.queries.step_of`); empty of others."""
        self.chosen = ""
        """Reason why it is of its member of a family (`cluster.queries.choice_of`)."""
        self.arrived_ns = arrived_ns
        self.outcome = "waiting"
        """``waiting``, ``running``, ``in_time``, ``late``, ``rejected`` or ``cancelled``."""
        self.ended_ns: int | None = None
        """Instant at which EXEC ended on the worker, or at which it was rejected or cancelled."""
        self.infer: ActionLife | None = None
        """The last INFER that it was in."""
        self.attempts = 0
        """INFERs that it was in."""
        self.cold = False
        """True if its model was resident nowhere when it arrived; known only once an INFER has it."""
        self.reason = ""
        self.detail = ""
        self.earliest_finish_ns: int | None = None
        self.evidence: Evidence | RejectEvidence | None = None
        """Numbers that its last INFER, or its rejection, was computed from."""


class Lifecycles:
    """See the module's docstring: `take` every record in order, then `finish`."""

    def __init__(
        self,
        on_request: Callable[[RequestLife], None] | None = None,
        on_action: Callable[[ActionLife], None] | None = None,
    ) -> None:
        """``on_request`` and ``on_action`` get each request and action when it has ended, lost ones too."""
        self.now_ns = 0
        """Instant of the last record; headers do not count, for theirs may be on another clock."""
        self.cluster = Cluster()
        """The state after the last record; a new object with each run."""
        self._run: int | None = None
        """`SegmentHeader.run`, once a header was read."""
        self._failed: dict[int, tuple[int, ActionLife]] = {}
        """Number of INFERs that failed on each open request, if any did, and the last of them."""
        self._unserved: dict[int, RequestLife] = {}
        """Open requests that came for an unknown model, by id, until an INFER has them."""
        self._unseen: set[int] = set()
        """Open requests of INFERs whose arrival is missing."""
        self._on_request = on_request or (lambda _: None)
        self._on_action = on_action or (lambda _: None)
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Infer: self._infer_sent,
            RequestArrived: self._arrived,
            Result: self._ended,
            Reject: self._rejected,
            RequestCancelled: self._cancelled,
            GatewayLeft: self._cancelled,
            WorkerJoined: self._joined,
            WorkerLeft: self._left,
            DropWorker: self._left,
            SegmentHeader: self._header,
        }

    def take(self, now_ns: int, entry: object) -> None:
        """Take one record in; the header of another run begins a new cluster, as `reset` does."""
        if type(entry) is not SegmentHeader:
            self.now_ns = now_ns
        handler = self._handlers.get(type(entry))
        if handler is None:
            follow(self.cluster, now_ns, entry)  # type: ignore[arg-type]
        else:
            handler(now_ns, entry)

    def reset(self) -> None:
        """Forget everything, and hand nothing out: another run or a snapshot begins."""
        self.cluster = Cluster()
        self._run = None
        self._failed.clear()
        self._unserved.clear()
        self._unseen.clear()

    def finish(self) -> None:
        """Hand out what is still open, as it stands, and forget the cluster: the stream ended."""
        for action in self.actions():
            self._on_action(action)
        for request in self.requests():
            self._on_request(request)
        self.reset()

    @property
    def queued(self) -> int:
        """Requests that wait for an INFER, or for the decision about them."""
        cluster = self.cluster
        undecided = [request for request in cluster.undecided if request.place is Place.UNDECIDED]
        return cluster.queued + len(undecided) + len(self._unplaced())

    def awaits(self, before_ns: int) -> bool:
        """Return whether something is open that came, or was sent, before an instant."""
        began = [each.arrived_ns for each in self._unplaced()]
        began += [each.arrived_ns for each in islice(self.cluster.requests.values(), 1)]
        for worker in self.cluster.workers.values():
            began += [each.action.earliest_ns for each in (worker.exec.first(), worker.load.first()) if each]
            began += [sent_ns for _, sent_ns in worker.others.values()]
        return bool(began) and min(began) < before_ns

    def actions(self) -> list[ActionLife]:
        """Return the outstanding actions, in the order in which they were sent."""
        found = [life for worker in self.cluster.workers.values() for life in outstanding(worker)]
        return sorted(found, key=lambda life: life.action.action_id)

    def requests(self) -> Iterator[RequestLife]:
        """Yield the open requests as they stand."""
        yield from self._unplaced()
        infers = {life.action.action_id: life for life in self.actions()}
        running = {each.id: infers[id_] for id_, some in self.cluster.running.items() for each in some}
        for request in self.cluster.requests.values():
            life = self._life(request, running.get(request.id))
            if life is not None:
                yield life

    # --- records ---

    def _header(self, _now_ns: int, header: SegmentHeader) -> None:
        if header.run != self._run:
            self.reset()
            self._run = header.run
            self.cluster = Settings.of(header.about).cluster()

    def _arrived(self, now_ns: int, event: RequestArrived) -> None:
        follow(self.cluster, now_ns, event)
        if event.request_id not in self.cluster.requests:
            self._unserved.setdefault(event.request_id, RequestLife(event, now_ns))

    def _infer_sent(self, now_ns: int, infer: Infer) -> None:
        unknown = [id_ for id_ in infer.request_ids if id_ not in self.cluster.requests]
        follow(self.cluster, now_ns, infer)
        for request_id in unknown:
            arrival = self._unserved.pop(request_id, None)
            if arrival is None:
                self._unseen.add(request_id)
            else:
                request = self.cluster.requests[request_id]
                request.event, request.arrived_ns = arrival.request, arrival.arrived_ns

    def _ended(self, now_ns: int, result: Result) -> None:
        life = ended_by(self.cluster, result)
        waiting = self._in_infer(result.action_id)
        follow(self.cluster, now_ns, result)
        if life is None:
            return
        life.result = result
        life.ended_ns = now_ns
        if result.status is not Status.OK:
            self._infer_failed(waiting, life)
        else:
            for request in waiting:
                self._executed(request, life, result.end_ns)
        self._on_action(life)

    def _rejected(self, now_ns: int, reject: Reject) -> None:
        query = self.cluster.queries.get(reject.request_id)
        ended = [reject.request_id] if query is None else list(query.open)
        lives = [self._end(request_id) for request_id in ended]
        if query is not None and not lives and not any(query.done):
            # It was refused on arrival: no piece of it came.
            refused = RequestLife(as_request(query), query.arrived_ns)
            refused.step = query.event.graph
            lives = [refused]
        follow(self.cluster, now_ns, reject)
        for life in [life for life in lives if life is not None]:
            life.reason = reject.reason.value
            life.detail = reject.detail
            life.earliest_finish_ns = reject.earliest_finish_ns
            life.evidence = reject.evidence
            self._hand_out(life, "rejected", now_ns)

    def _cancelled(self, now_ns: int, event: RequestCancelled | GatewayLeft) -> None:
        if isinstance(event, RequestCancelled):
            query = self.cluster.queries.get(event.request_id)
            ids, detail = [event.request_id] if query is None else list(query.open), ""
        else:
            ids, detail = [each.id for each in requests_of(self.cluster, event.number)], "its gateway left"
            unplaced = [life.request.request_id for life in self._unplaced()]
            ids += [id_ for id_ in unplaced if gateway_of(id_) == event.number]
        lives = [self._end(id_) for id_ in ids]
        follow(self.cluster, now_ns, event)
        for life in [life for life in lives if life is not None]:
            life.detail = detail
            self._hand_out(life, "cancelled", now_ns)

    def _joined(self, now_ns: int, event: WorkerJoined) -> None:
        if event.worker in self.cluster.workers:
            self._left(now_ns, WorkerLeft(event.worker, "joined again"))
        follow(self.cluster, now_ns, event)

    def _left(self, now_ns: int, entry: WorkerLeft | DropWorker) -> None:
        worker = self.cluster.workers.get(entry.worker)
        lost = [] if worker is None else outstanding(worker)
        waiting = {life.action.action_id: self._in_infer(life.action.action_id) for life in lost}
        follow(self.cluster, now_ns, entry)
        for life in sorted(lost, key=lambda life: life.action.action_id):
            life.ended_ns = now_ns
            life.lost = entry.reason or "its worker left"
            self._infer_failed(waiting[life.action.action_id], life)
            self._on_action(life)

    # --- requests ---

    def _life(self, request: Request, infer: ActionLife | None) -> RequestLife | None:
        """Return the life of an open request, which is in an INFER or not; None if its arrival is missing."""
        if request.id in self._unseen:
            return None
        life = RequestLife(request.event, request.arrived_ns)
        life.step, life.chosen = step_of(request), choice_of(request)
        failed = self._failed.get(request.id)
        if failed is not None:
            life.attempts, life.infer = failed
        if infer is not None:
            life.attempts += 1
            life.infer = infer
            life.outcome = "running"
        if life.infer is not None and isinstance(life.infer.action, Infer):
            action = life.infer.action
            life.cold = action.cold[action.request_ids.index(request.id)]
            life.evidence = action.evidence
        return life

    def _in_infer(self, action_id: int) -> list[Request]:
        """Return the requests of an outstanding INFER that still wait for it; none of another action."""
        return [each for each in self.cluster.running.get(action_id, ()) if each.place is not _GONE]

    def _unplaced(self) -> list[RequestLife]:
        """Return the open requests that the cluster does not have."""
        return [life for id_, life in self._unserved.items() if id_ not in self.cluster.requests]

    def _end(self, request_id: int) -> RequestLife | None:
        """Return the life of a request that ends, but not with its INFER; None if it is not open."""
        request = self.cluster.requests.get(request_id)
        if request is None:
            return self._unserved.pop(request_id, None)
        infer = infer_of(self.cluster, request)
        life = self._life(request, None if infer is None else ActionLife(infer, infer.earliest_ns))
        self._forget(request_id)
        return life

    def _forget(self, request_id: int) -> None:
        self._failed.pop(request_id, None)
        self._unserved.pop(request_id, None)
        self._unseen.discard(request_id)

    def _infer_failed(self, requests: list[Request], infer: ActionLife) -> None:
        """Remember that an INFER failed on requests, or was lost with its worker."""
        for request in requests:
            attempts = self._failed[request.id][0] if request.id in self._failed else 0
            self._failed[request.id] = attempts + 1, infer

    def _executed(self, request: Request, infer: ActionLife, end_ns: int) -> None:
        life = self._life(request, infer)
        self._forget(request.id)
        if life is not None:
            deadline_ns = life.request.deadline_ns
            late = deadline_ns is not None and end_ns > deadline_ns
            self._hand_out(life, "late" if late else "in_time", end_ns)

    def _hand_out(self, life: RequestLife, outcome: str, at_ns: int) -> None:
        life.outcome = outcome
        life.ended_ns = at_ns
        self._on_request(life)


def as_request(query: Query) -> RequestArrived:
    """Return the arrival of a query as if it were one request, for the model of its first step."""
    event, first = query.event, query.event.steps[0]
    return RequestArrived(
        query.id, first.model, first.rows, event.deadline_ns, event.priority, first.sizes, query.id
    )


def ended_by(cluster: Cluster, result: Result) -> ActionLife | None:
    """Return the action that a result ends, which must not be entered yet; None if none is outstanding."""
    worker = cluster.workers.get(result.worker)
    found = None if worker is None else worker.outstanding(result.action_id)
    return None if found is None else ActionLife(*found)


def outstanding(worker: Worker, executor: str = "") -> list[ActionLife]:
    """Return what is outstanding on a worker, or on its ``EXEC``, ``LOAD`` or ``OTHER`` alone."""
    found: list[ActionLife] = []
    if executor in ("", "EXEC"):
        found += [ActionLife(executed, executed.earliest_ns) for executed in worker.exec.actions()]
    if executor in ("", "LOAD"):
        found += [ActionLife(load, load.earliest_ns) for load in worker.load.actions()]
    if executor in ("", "OTHER"):
        found += [ActionLife(other, sent_ns) for other, sent_ns in worker.others.values()]
    return found


def infer_of(cluster: Cluster, request: Request) -> Infer | None:
    """Return the outstanding INFER that a request is in; None if it waits."""
    if request.place is _DISPATCHED:
        for worker in cluster.workers.values():
            for action in worker.exec.actions():
                if isinstance(action, Infer) and request.id in action.request_ids:
                    return action
    return None
