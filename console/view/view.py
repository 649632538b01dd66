"""The state of a cluster as its event stream tells it, with some minutes of history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mainspring.console.view.actions import LOST, Action, Lane
from mainspring.console.view.ending import Ending, close, take_out
from mainspring.console.view.fleet import Fleet
from mainspring.console.view.happenings import Happening, Happenings
from mainspring.console.view.limits import SECOND_NS, Limits
from mainspring.console.view.models import BROKEN, EVICTIONS, FAILED, LOADS
from mainspring.console.view.operations import Operations
from mainspring.console.view.traffic import Traffic
from mainspring.console.view.workers import WorkerState
from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import (
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.observing import Estimated, Holding
from mainspring.messages.operating import DrainWorker, ResumeWorker
from mainspring.telemetry.log import SegmentHeader
from mainspring.telemetry.settings import Settings

_OK = Status.OK.value
_ENGINE_ERROR = Status.ENGINE_ERROR.value
_UNREACHABLE = Reason.DEADLINE_UNREACHABLE


class View:
    """A reducer: `take` every record in the order of the stream, ask `console.queries` at any time.

    It copes with a stream whose beginning is missing (actions of workers and models that were never told
    of are learnt as they come) and with a record that comes twice in a row. It never raises on a record,
    whatever the record says. Not safe for several threads at once.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Begin with nothing known; ``limits`` bound what is remembered."""
        self.limits = limits or Limits()
        self.now_ns = 0
        """The instant up to which the view is true: of the latest record."""
        self.seq = 0
        """How many records were taken; a record's own number is what this is while it is taken."""
        self.reset_seq = 0
        """What it was when the last picture began."""
        self.run = 0
        """Which run of a controller this is of (`SegmentHeader.run`); 0 while no header has said."""
        self.settings = Settings()
        """Of the scheduler, as the header says."""
        self.fleet = Fleet(self.limits.evictions)
        self.traffic = Traffic(self.limits, self.fleet)
        self.operations = Operations(self.limits.operations)
        self.happenings = Happenings(self.limits.happenings)
        self._began_ns = 0
        self._unix_offset_ns = 0
        self._pictured_ns = 0
        """What happened before it a picture may tell of, as something that is so."""
        self._second_ends_ns = 0
        self._ending = Ending(self.fleet.durations, self.settings.dispatch_delay_ns)
        self._last_ended: dict[int, None] = {}
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            RequestArrived: self._arrived,
            RequestCancelled: self._cancelled,
            GatewayLeft: self._gateway_left,
            Infer: self._infer,
            Load: self._load,
            Prepare: self._other,
            Release: self._other,
            Unload: self._other,
            Result: self._result,
            Reject: self._reject,
            ModelAdded: lambda _, event: self.fleet.model_added(self.seq, event.model),
            ModelRemoved: self._model_removed,
            WorkerJoined: self._joined,
            WorkerLeft: self._left,
            DropWorker: self._left,
            Holding: lambda now_ns, holding: self.fleet.holds(now_ns, self.seq, holding),
            Estimated: lambda _, estimated: self.fleet.estimated(estimated),
            OperatorAsked: self._asked,
            SegmentHeader: self._header,
        }

    @property
    def policy(self) -> str:
        """The scheduler's policy; empty while no header has said."""
        return self.settings.policy

    @property
    def first_ns(self) -> int:
        """The earliest instant of which something is remembered; 0 before the first record."""
        return max(self._began_ns, self.now_ns - self.limits.keep_ns)

    def take(self, now_ns: int, entry: object) -> None:
        """Take one record in: an event, a command, a `SegmentHeader`, or what only pictures have.

        A `Wakeup` says that nothing happened up to its instant; what is no such record is passed over. A
        header of another run than before does what ``reset(keep_history=False)`` does.
        """
        self.seq += 1
        # A log that was written in virtual time has its header at an instant of another clock.
        if now_ns > self.now_ns and type(entry) is not SegmentHeader:
            self.now_ns = now_ns
            if now_ns >= self._second_ends_ns:
                self._reach(now_ns)
        handler = self._handlers.get(type(entry))
        if handler is not None:
            handler(now_ns, entry)

    def reset(self, *, keep_history: bool) -> None:
        """A picture of how things stand begins (`messages.observing`): forget how they stood.

        Workers, models and requests that wait are forgotten until the picture tells of them again; what is
        over is remembered with ``keep_history``, and forgotten without.
        """
        self.seq += 1
        self.reset_seq = self.seq
        self._last_ended.clear()
        self.fleet.forget(keep_history)
        self.traffic.forget(keep_history)
        self.operations.forget(keep_history)
        self.happenings.forget(keep_history)
        self._ending = Ending(self.fleet.durations, self.settings.dispatch_delay_ns)
        if not keep_history:
            self.run = self.now_ns = self._began_ns = self._second_ends_ns = self._pictured_ns = 0

    def happened(self) -> Iterator[tuple[int, Happening]]:
        """Yield what happened up to now with its instant on the controller's clock, the newest first."""
        for each in self.happenings.newest():
            at_ns = each.unix_ns - self._unix_offset_ns
            if at_ns <= self.now_ns:
                yield at_ns, each

    def unix_ns(self, now_ns: int) -> int:
        """Return an instant of the controller's clock as Unix time; 0 while that is not known."""
        return now_ns + self._unix_offset_ns if self._unix_offset_ns else 0

    # --- requests ---

    def _arrived(self, now_ns: int, event: RequestArrived) -> None:
        self.traffic.arrived(now_ns, self.seq, event, now_ns >= self._pictured_ns)

    def _cancelled(self, now_ns: int, event: RequestCancelled) -> None:
        self.traffic.cancelled(now_ns, self.seq, event.request_id)

    def _gateway_left(self, now_ns: int, event: GatewayLeft) -> None:
        self.traffic.gateway_left(now_ns, self.seq, event.number)

    def _reject(self, now_ns: int, command: Reject) -> None:
        request = self.traffic.rejected(now_ns, self.seq, command)
        if request is not None and command.reason is _UNREACHABLE:
            model = self.fleet.models.get(request.model)
            if model is not None and model.spec is not None:
                # It was done when the request came, before anything that came with it.
                fleet = self.fleet
                fleet.durations.doubt(request.arrived_ns, request.arrived_seq - 1, model.spec, fleet.kinds())

    # --- actions ---

    def _infer(self, now_ns: int, command: Infer) -> None:
        worker = self.fleet.worker(command.worker, now_ns, self.seq)
        lane = worker.history.exec
        if command.action_id in lane.outstanding or command.action_id in self._last_ended:
            return
        soonest_ns, requests = now_ns + self.settings.dispatch_delay_ns, self.traffic.book.open
        transfer_ns = self.fleet.infer(now_ns, worker, command, self.seq, soonest_ns, requests)
        lane.outstanding[command.action_id] = Action(
            id=command.action_id,
            kind="INFER",
            model=command.model,
            batch_size=command.batch_size,
            rows=sum(command.rows),
            requests=command.request_ids,
            sent_seq=self.seq,
            sent_ns=now_ns,
            earliest_ns=command.earliest_ns,
            latest_ns=command.latest_ns,
            predicted_begin_ns=command.predicted_begin_ns,
            predicted_duration_ns=command.predicted_duration_ns,
            transfer_ns=transfer_ns,
        )
        self.traffic.dispatched(command)

    def _load(self, now_ns: int, command: Load) -> None:
        worker = self.fleet.worker(command.worker, now_ns, self.seq)
        lane = worker.history.load
        if command.action_id in lane.outstanding or command.action_id in self._last_ended:
            return
        self.fleet.load(now_ns, worker, command, self.seq)
        self.traffic.moved(command.model, LOADS)
        lane.outstanding[command.action_id] = Action(
            id=command.action_id,
            kind="LOAD",
            model=command.model,
            batch_size=0,
            rows=0,
            requests=(),
            sent_seq=self.seq,
            sent_ns=now_ns,
            earliest_ns=command.earliest_ns,
            latest_ns=command.latest_ns,
            predicted_begin_ns=command.predicted_begin_ns,
            predicted_duration_ns=command.predicted_duration_ns,
            pages=len(command.pages),
        )

    def _other(self, now_ns: int, command: Prepare | Release | Unload) -> None:
        fleet = self.fleet
        worker = fleet.worker(command.worker, now_ns, self.seq)
        lane = worker.history.other
        if command.action_id in lane.outstanding or command.action_id in self._last_ended:
            return
        match command:
            case Prepare():
                kind, model = "PREPARE", fleet.prepare(worker, command)
            case Release():
                kind, model = "RELEASE", fleet.release(worker, command)
            case Unload():
                kind, model = "UNLOAD", fleet.unload(now_ns, worker, command)
                self.traffic.moved(model, EVICTIONS)
        lane.outstanding[command.action_id] = Action(
            command.action_id, kind, model, 0, 0, (), self.seq, now_ns, now_ns, now_ns, now_ns, 0
        )

    def _result(self, now_ns: int, result: Result) -> None:
        worker = self.fleet.workers.get(result.worker)
        found = None if worker is None else take_out(worker, result)
        if worker is None or found is None:
            return
        lane, action = found
        close(now_ns, self.seq, action, result)
        was_stopping = worker.stopping_seq
        self._ending.ended(now_ns, self.seq, worker, action, self.traffic.book.open)
        if worker.stopping_seq and not was_stopping:
            self.happenings.stopping(self._unix_offset_ns + now_ns, worker.name)
        self._remember(lane, action)
        if action.kind == "INFER":
            if action.status == _OK:
                self.happenings.ran(self._unix_offset_ns + now_ns, worker.name, action)
                self.traffic.executed(self.seq, action)
            else:
                self.traffic.failed(self.seq, worker.name, action)
        elif action.kind == "LOAD" and action.status == _OK:
            self.happenings.ran(self._unix_offset_ns + now_ns, worker.name, action)
        elif action.status == _ENGINE_ERROR or (action.kind == "PREPARE" and action.status != _OK):
            placement = worker.placements.get(action.model)
            left_out = placement is not None and placement.state in (BROKEN, FAILED)
            self.happenings.failed(self._unix_offset_ns + now_ns, worker.name, action, left_out=left_out)

    def _remember(self, lane: Lane, action: Action) -> None:
        lane.end(action)
        last = self._last_ended
        last[action.id] = None
        if len(last) > 1_000:
            del last[next(iter(last))]

    # --- models and workers ---

    def _model_removed(self, _now_ns: int, event: ModelRemoved) -> None:
        self.fleet.model_removed(event.name)
        self.operations.model_removed(event.name)

    def _joined(self, now_ns: int, event: WorkerJoined) -> None:
        if event.worker in self.fleet.workers:
            self._gone(now_ns, event.worker, "joined again")
        self.fleet.joined(now_ns, self.seq, event)
        self.happenings.joined(self._unix_offset_ns + now_ns, event.worker)

    def _asked(self, now_ns: int, event: OperatorAsked) -> None:
        self.operations.asked(now_ns, event.who, event.wish)
        match event.wish:
            case DrainWorker(worker=worker):
                self.happenings.drained(self._unix_offset_ns + now_ns, worker, event.who)
            case ResumeWorker(worker=worker):
                self.happenings.resumed(self._unix_offset_ns + now_ns, worker, event.who)

    def _left(self, now_ns: int, entry: WorkerLeft | DropWorker) -> None:
        if isinstance(entry, DropWorker) and entry.unanswered is not None:
            self.fleet.unanswered(now_ns, self.seq, entry.worker, entry.unanswered)
        self._gone(now_ns, entry.worker, entry.reason)

    def _gone(self, now_ns: int, name: str, reason: str) -> None:
        worker: WorkerState | None = self.fleet.workers.get(name)
        if worker is not None:
            self.happenings.left(self._unix_offset_ns + now_ns, name, reason)
        for action in self.fleet.left(now_ns, self.seq, name, reason):
            action.done_seq, action.done_ns = self.seq, now_ns
            action.status, action.detail = LOST, reason
            assert worker is not None
            history = worker.history
            lane = {"INFER": history.exec, "LOAD": history.load}.get(action.kind, history.other)
            lane.end(action)
            if action.kind == "INFER":
                self.traffic.failed(self.seq, name, action)

    # --- runs and time ---

    def _header(self, now_ns: int, header: SegmentHeader) -> None:
        if self.run and header.run != self.run:
            self.reset(keep_history=False)
        elif self.reset_seq and self.reset_seq == self.seq - 1:
            self._pictured_ns = now_ns
        if header.first_of_run:
            self.fleet.complete = True
        self.run = header.run
        self._unix_offset_ns = header.unix_ns - now_ns
        self.happenings.run(header.unix_ns, header.run)
        self.settings = Settings.of(header.about)
        self.fleet.durations.ranked(self.settings.estimate_rank)
        self._ending = Ending(self.fleet.durations, self.settings.dispatch_delay_ns)

    def _reach(self, now_ns: int) -> None:
        """Whole seconds have ended: count them, and forget what is old."""
        self._began_ns = self._began_ns or now_ns
        passed = (now_ns - self._second_ends_ns) // SECOND_NS + 1 if self._second_ends_ns else 0
        self._second_ends_ns = (now_ns // SECOND_NS + 1) * SECOND_NS
        self.traffic.reach(now_ns, self.seq, passed)
        self.fleet.forget_before(now_ns - self.limits.keep_ns, self.limits)
