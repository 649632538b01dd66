"""Records joined into lives: each action with its result, each request with what became of it. Pure.

One pass over an event stream in order; what has ended is handed out at once, so memory holds only what is
open, and the cluster as it stands: its models, and what each worker's memory holds. A stream that begins in
the middle is told only in part: actions whose beginning is missing are left out, and so are their requests.

An outcome is told as the controller saw it: a request is in time if EXEC ended by its deadline, which does
not count the way of the outputs back to the gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainspring.messages.actions import Action, Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import (
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    Resident,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.ids import gateway_of
from mainspring.messages.model import Artifact, ModelSpec
from mainspring.messages.observing import Holding
from mainspring.messages.operating import subject

OPEN_OUTCOMES = ("waiting", "running")
"""Outcomes of requests that had not ended when the stream did."""


class ActionLife:
    """An action from its command to its result."""

    __slots__ = ("action", "ended_ns", "lost", "result", "sent_ns")

    def __init__(self, action: Action, sent_ns: int) -> None:
        self.action = action
        self.sent_ns = sent_ns
        self.result: Result | None = None
        self.ended_ns: int | None = None
        """When its result passed the controller, or its worker was lost; None while it is outstanding."""
        self.lost = ""
        """Why no result will come: its worker is gone."""

    @property
    def model(self) -> str:
        """Name of the model that it is about."""
        return model_of(self.action)

    @property
    def kind(self) -> str:
        """``INFER``, ``LOAD``, ``UNLOAD``, ``PREPARE`` or ``RELEASE``."""
        return _KINDS[type(self.action)]

    @property
    def status(self) -> str:
        """A `messages.codes.Status`, ``lost`` with its worker, or empty while it is outstanding."""
        if self.result is not None:
            return self.result.status.value
        return "lost" if self.lost else ""


class RequestLife:
    """A request from its arrival to its end."""

    __slots__ = (
        "arrived_ns",
        "attempts",
        "cold",
        "detail",
        "earliest_finish_ns",
        "ended_ns",
        "infer",
        "outcome",
        "reason",
        "request",
    )

    def __init__(self, request: RequestArrived, arrived_ns: int) -> None:
        self.request = request
        self.arrived_ns = arrived_ns
        self.outcome = "waiting"
        """``waiting``, ``running``, ``in_time``, ``late``, ``rejected`` or ``cancelled``."""
        self.ended_ns: int | None = None
        """When EXEC ended on the worker, or when it was rejected or cancelled."""
        self.infer: ActionLife | None = None
        """The last INFER that it was in."""
        self.attempts = 0
        """INFERs that it was in."""
        self.cold = False
        """Whether its model was resident nowhere when it arrived; known only once an INFER has it."""
        self.reason = ""
        self.detail = ""
        self.earliest_finish_ns: int | None = None


class Held:
    """A worker and what its memory holds."""

    __slots__ = ("device_kind", "failed", "pages", "prepared", "resident")

    def __init__(self, joined: WorkerJoined) -> None:
        self.device_kind = joined.device_kind
        self.pages = joined.pages
        self.prepared: dict[str, Artifact] = dict(joined.prepared)
        self.resident: dict[str, Resident] = {each.model: each for each in joined.resident}
        self.failed: dict[str, ActionLife] = {}
        """The last PREPARE of each model if it failed."""

    @property
    def pages_free(self) -> int:
        """Pages that hold no resident model."""
        return self.pages - sum(len(each.pages) for each in self.resident.values())


class Lifecycles:
    """See the module's docstring: `take` every record in order, then `finish`."""

    def __init__(
        self,
        on_request: Callable[[RequestLife], None] | None = None,
        on_action: Callable[[ActionLife], None] | None = None,
    ) -> None:
        """``on_request`` and ``on_action`` get each request and action when it has ended."""
        self.now_ns = 0
        """Instant of the last record."""
        self.models: dict[str, ModelSpec] = {}
        self.workers: dict[str, Held] = {}
        self.actions: dict[int, ActionLife] = {}
        """Outstanding ones, in the order in which they were sent."""
        self.requests: dict[int, RequestLife] = {}
        """Those that have not ended, in the order in which they came."""
        self.running = 0
        """How many of them are in an outstanding INFER."""
        self.asked: dict[tuple[str, str], tuple[int, OperatorAsked]] = {}
        """The last wish of operators about each thing that they may set, and when it was granted."""
        self._on_request = on_request or _ignore
        self._on_action = on_action or _ignore
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            **dict.fromkeys((Infer, Load, Prepare, Release, Unload), self._sent),
            RequestArrived: self._arrived,
            Result: self._ended,
            Reject: self._rejected,
            RequestCancelled: self._cancelled,
            GatewayLeft: self._gateway_left,
            ModelAdded: self._added,
            ModelRemoved: self._removed,
            WorkerJoined: self._joined,
            Holding: self._holds,
            OperatorAsked: self._operated,
            WorkerLeft: self._left,
            DropWorker: self._left,
        }

    @property
    def queued(self) -> int:
        """Requests that wait for an INFER."""
        return len(self.requests) - self.running

    def take(self, now_ns: int, entry: object) -> None:
        """Take one record in; what it says nothing about is passed over."""
        self.now_ns = now_ns
        handler = self._handlers.get(type(entry))
        if handler is not None:
            handler(now_ns, entry)

    def finish(self) -> None:
        """Hand out what is still open, as it stands, and forget the cluster: the stream or its run ended."""
        for action in self.actions.values():
            self._on_action(action)
        for request in self.requests.values():
            self._on_request(request)
        for table in (self.actions, self.requests, self.models, self.workers, self.asked):
            table.clear()
        self.running = 0

    def _arrived(self, now_ns: int, event: RequestArrived) -> None:
        if event.request_id not in self.requests:
            self.requests[event.request_id] = RequestLife(event, now_ns)

    def _sent(self, now_ns: int, action: Action) -> None:
        if action.action_id in self.actions:
            return
        life = self.actions[action.action_id] = ActionLife(action, now_ns)
        if isinstance(action, Infer):
            for request_id, cold in zip(action.request_ids, action.cold, strict=True):
                request = self.requests.get(request_id)
                if request is not None:
                    self.running += request.outcome != "running"
                    request.outcome = "running"
                    request.infer = life
                    request.attempts += 1
                    request.cold = cold

    def _ended(self, now_ns: int, result: Result) -> None:
        life = self.actions.pop(result.action_id, None)
        if life is None:
            return
        life.result = result
        life.ended_ns = now_ns
        ok = result.status is Status.OK
        if isinstance(life.action, Infer):
            self._infer_ended(life, result if ok else None)
        else:
            self._memory_changed(life, ok=ok)
        self._on_action(life)

    def _infer_ended(self, life: ActionLife, result: Result | None) -> None:
        """End an INFER's requests with its result, or let them wait again if there is none."""
        assert isinstance(life.action, Infer)
        for request_id in life.action.request_ids:
            request = self.requests.get(request_id)
            if request is None or request.infer is not life:
                continue
            if result is None:
                self.running -= request.outcome == "running"
                request.outcome = "waiting"
            else:
                deadline_ns = request.request.deadline_ns
                late = deadline_ns is not None and result.end_ns > deadline_ns
                self._end_request(result.end_ns, request, "late" if late else "in_time")

    def _memory_changed(self, life: ActionLife, *, ok: bool) -> None:
        held = self.workers.get(life.action.worker)
        if held is None:
            return
        match life.action:
            case Prepare(model=spec) if ok:
                held.prepared[spec.name] = spec.artifact
                held.failed.pop(spec.name, None)
            case Prepare(model=spec):
                held.failed[spec.name] = life
            case Release(model=name) if ok:
                held.prepared.pop(name, None)
            case Load(model=name, pages=pages) if ok:
                held.resident[name] = Resident(name, self._artifact(held, name), pages)
            case Unload(model=name) if ok:
                held.resident.pop(name, None)

    def _artifact(self, held: Held, name: str) -> Artifact:
        """Return what a worker loaded: what it had prepared or, where that is not known, what is served."""
        if name in held.prepared:
            return held.prepared[name]
        spec = self.models.get(name)
        return Artifact("", "", (1,)) if spec is None else spec.artifact

    def _rejected(self, now_ns: int, reject: Reject) -> None:
        request = self.requests.get(reject.request_id)
        if request is not None:
            request.reason = reject.reason.value
            request.detail = reject.detail
            request.earliest_finish_ns = reject.earliest_finish_ns
            self._end_request(now_ns, request, "rejected")

    def _cancelled(self, now_ns: int, event: RequestCancelled) -> None:
        request = self.requests.get(event.request_id)
        if request is not None:
            self._end_request(now_ns, request, "cancelled")

    def _gateway_left(self, now_ns: int, event: GatewayLeft) -> None:
        gone = [life for id_, life in self.requests.items() if gateway_of(id_) == event.number]
        for request in gone:
            request.detail = "its gateway left"
            self._end_request(now_ns, request, "cancelled")

    def _end_request(self, at_ns: int, request: RequestLife, outcome: str) -> None:
        self.running -= request.outcome == "running"
        request.outcome = outcome
        request.ended_ns = at_ns
        del self.requests[request.request.request_id]
        self._on_request(request)

    def _added(self, _now_ns: int, event: ModelAdded) -> None:
        self.models[event.model.name] = event.model

    def _removed(self, _now_ns: int, event: ModelRemoved) -> None:
        self.models.pop(event.name, None)
        self.asked.pop(("model", event.name), None)

    def _joined(self, now_ns: int, event: WorkerJoined) -> None:
        if event.worker in self.workers:
            self._left(now_ns, WorkerLeft(event.worker, "joined again"))
        self.workers[event.worker] = Held(event)

    def _holds(self, _now_ns: int, holding: Holding) -> None:
        """Enter what a picture of a live controller says of a worker's memory."""
        held = self.workers.get(holding.worker)
        if held is not None:
            for name in (*holding.prepared, *holding.resident):
                held.prepared[name] = self._artifact(held, name)
            for name, pages in holding.resident.items():
                held.resident[name] = Resident(name, held.prepared[name], pages)

    def _operated(self, now_ns: int, event: OperatorAsked) -> None:
        about = subject(event.wish)
        if about is not None:
            self.asked.pop(about, None)
            self.asked[about] = now_ns, event

    def _left(self, now_ns: int, entry: WorkerLeft | DropWorker) -> None:
        self.workers.pop(entry.worker, None)
        lost = [life for life in self.actions.values() if life.action.worker == entry.worker]
        for life in lost:
            del self.actions[life.action.action_id]
            life.ended_ns = now_ns
            life.lost = entry.reason or "its worker left"
            if isinstance(life.action, Infer):
                self._infer_ended(life, None)
            self._on_action(life)


def model_of(action: Action) -> str:
    """Return the name of the model that an action is about."""
    return action.model.name if isinstance(action, Prepare) else action.model


def _ignore(_life: object) -> None:
    """Hand nothing out."""


_KINDS: dict[type, str] = {kind: kind.__name__.upper() for kind in (Infer, Load, Unload, Prepare, Release)}
