"""The console's view of a cluster: the fold of its event stream, and some minutes of history.

How things stand is `View.cluster`, kept by the scheduler's own `cluster.apply`; nothing of it is kept here
again. Beside it the view remembers what the fold forgets: what has ended, and counts by second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mainspring.cluster.apply import settle
from mainspring.cluster.placements import State
from mainspring.cluster.state import Cluster
from mainspring.console.view.actions import Action, Lane, planned
from mainspring.console.view.actions import ended as ended_action
from mainspring.console.view.happenings import ADDED, REMOVED, Happening, Happenings
from mainspring.console.view.learning import LearningView
from mainspring.console.view.models import EVICTIONS, LOADS, Traffic
from mainspring.console.view.requests import Request, is_lost, still_open
from mainspring.console.view.requests import ended as ended_request
from mainspring.console.view.series import SECOND_NS, Limits
from mainspring.console.view.workers import History, Session, Standing, left, standing
from mainspring.messages.actions import KINDS, DropWorker, Load, Unload, kind_of
from mainspring.messages.actions import Action as Command
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    GatewayRefused,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    RequestArrived,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.learning import LearningOfGateways
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.observing import Clocks, Devices, Unready, WorkerClock
from mainspring.messages.operating import DrainWorker, OperatorCommand, ResumeWorker
from mainspring.messages.snapshot import OperatorState, WorkerState
from mainspring.telemetry.entries import SegmentHeader, Settings
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife, outstanding

_GIVEN_UP = (State.FAILED, State.BROKEN)
_BEGINNING_NS = 10 * SECOND_NS
"""Time for which a cluster that begins may add models."""


class Operation(msgspec.Struct, frozen=True):
    """One command of an operator that was granted."""

    at_ns: int
    who: str
    command: OperatorCommand


class View:
    """A reader of the stream: `take` every record in order, ask `console.queries` at any time.

    It copes with a stream whose beginning is missing (`cluster.follow`), and never raises on a record,
    whatever the record says. Not safe for several threads at once.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Begin with nothing known; ``limits`` bound what is remembered."""
        self.limits = limits or Limits()
        self.now_ns = 0
        """The instant up to which the view is true: of the latest record."""
        self.seq = 0
        """Number of records read so far; while a record is read, its own number."""
        self.reset_seq = 0
        """Value of ``seq`` when the last snapshot began."""
        self.run = 0
        """Number of the controller's run (`SegmentHeader.run`); 0 while no header has said."""
        self.settings = Settings()
        """Settings of the scheduler, as the header says."""
        self.traffic = Traffic(self.limits)
        self.histories: dict[str, History] = {}
        """History of each worker that is there or among `sessions`, by its name."""
        self.sessions: deque[Session] = deque()
        """Workers that left, the newest last."""
        self.operations: deque[Operation] = deque(maxlen=self.limits.operations)
        """The newest of what operators asked for and was granted, the newest last."""
        self.happenings = Happenings(self.limits.happenings)
        self.removed: dict[str, int] = {}
        """Instant at which each of the last removed models was removed."""
        self.devices: dict[str, DeviceHealth] = {}
        """Health that each worker's GPU reports: no record has it, and who follows a live cluster sets it."""
        self.clocks: dict[str, WorkerClock] = {}
        """Clock of each worker beside the controller's; set like ``devices``."""
        self.unready = Unready()
        """Models and workers that can't be counted on at the moment; set like ``devices``."""
        self.learning = LearningView()
        self._lifecycles = Lifecycles(self._request_ended, self._action_ended)
        self._began_ns = self._unix_offset_ns = self._second_ends_ns = 0
        self._contradicted = False
        self._before: dict[type, Callable[[int, Any], None]] = {
            RequestArrived: self._arrives,
            Load: self._loads,
            Unload: self._unloads,
            **dict.fromkeys((WorkerJoined, WorkerLeft, DropWorker), self._leaves),
        }
        """Handlers that read the state before the record changes it, by the record's type."""
        self._after: dict[type, Callable[[int, Any], None]] = {
            **dict.fromkeys(KINDS, self._sent),
            ModelRemoved: self._removed,
            ModelAdded: self._added,
            WorkerJoined: lambda now_ns, event: self._there(now_ns, event.worker),
            OperatorAsked: self._asked,
            GatewayRefused: self._turned_away,
            WorkerState: lambda now_ns, state: self._there(now_ns, state.worker),
            OperatorState: self._set_before,
        }

    @property
    def cluster(self) -> Cluster:
        """Return the state of the cluster; requests that nothing has rejected wait."""
        settle(self._lifecycles.cluster)
        return self._lifecycles.cluster

    @property
    def policy(self) -> str:
        """The scheduler's policy; empty while no header has said."""
        return self.settings.policy

    @property
    def first_ns(self) -> int:
        """The earliest instant of which something is remembered; 0 before the first record."""
        return max(self._began_ns, self.now_ns - self.limits.keep_ns)

    def gone(self) -> dict[str, Session]:
        """Return the last session of each worker that has left."""
        return {each.name: each for each in self.sessions if each.name not in self.cluster.workers}

    def take(self, now_ns: int, entry: object) -> None:
        """Take one record in: an event, a command, a `SegmentHeader`, or what only snapshots have.

        A `Wakeup` says that nothing happened up to its instant; other objects are passed over. A
        header of another run than before does what ``reset(keep_history=False)`` does.
        """
        self.seq += 1
        kind = type(entry)
        if isinstance(entry, SegmentHeader):
            self._header(now_ns, entry)
        # A log that was written in virtual time has its header at an instant of another clock.
        elif now_ns > self.now_ns:
            self.now_ns = now_ns
            if now_ns >= self._second_ends_ns:
                self._reach(now_ns)
        try:
            before, after = self._before.get(kind), self._after.get(kind)
            if before is not None:
                before(now_ns, entry)
            self._lifecycles.take(now_ns, entry)
            if after is not None:
                after(now_ns, entry)
        except Exception as error:
            self._contradiction(now_ns, entry, error)

    def reset(self, *, keep_history: bool) -> None:
        """Forget how things stand, because a snapshot begins (`messages.observing`).

        What is over is remembered with ``keep_history``, and forgotten without.
        """
        self.seq += 1
        self.reset_seq = self.seq
        self._lifecycles.reset()
        self._contradicted = False
        for history in self.histories.values():
            for lane in history.lanes:
                lane.sent.clear()
        self.happenings.forget(keep_history)
        if not keep_history:
            self.traffic = Traffic(self.limits)
            self.learning = LearningView()
            self.histories.clear()
            self.sessions.clear()
            self.operations.clear()
            self.removed.clear()
            self.run = self.now_ns = self._began_ns = self._second_ends_ns = 0

    def happened(self) -> Iterator[tuple[int, Happening]]:
        """Yield what happened up to now with its instant on the controller's clock, the newest first."""
        for each in self.happenings.newest():
            at_ns = each.unix_ns - self._unix_offset_ns
            if at_ns <= self.now_ns:
                yield at_ns, each

    def unix_ns(self, now_ns: int) -> int:
        """Return an instant of the controller's clock as Unix time; 0 while that is not known."""
        return now_ns + self._unix_offset_ns if self._unix_offset_ns else 0

    def history(self, worker: str) -> History:
        """Return what is remembered of a worker."""
        known = self.histories.get(worker)
        if known is None:
            known = self.histories[worker] = History(worker, self.limits.evictions)
        return known

    def find(self, request_id: int) -> Request | None:
        """Return a request that has not ended, or that is remembered; None if nothing is known of it."""
        known = self.cluster.requests.get(request_id)
        if known is not None:
            return still_open(self.cluster, known, self.now_ns)
        return self.traffic.ended.get(request_id)

    def pieces(self, query_id: int) -> list[Request]:
        """Return what is known of a query's pieces, open or ended, by their ids."""
        query = self.cluster.queries.get(query_id)
        known = [] if query is None else list(query.open.values())
        found = [still_open(self.cluster, each, self.now_ns) for each in known]
        return sorted([*found, *self.traffic.ended.of_query(query_id)], key=lambda each: each.id)

    def outstanding(self, lane: Lane) -> list[Action]:
        """Return an executor's actions that were sent and have not ended, in the order in which it was
        sent."""
        worker = self.cluster.workers.get(lane.worker)
        if worker is None:
            return []
        return [planned(life.action, life.sent_ns) for life in outstanding(worker, lane.executor)]

    def action(self, lane: Lane, action_id: int, from_ns: int, to_ns: int) -> Action | None:
        """Return an action that is outstanding, or ended in a span of time; None if neither is known."""
        for action in (*self.outstanding(lane), *lane.ended_in(from_ns, to_ns)):
            if action.id == action_id:
                return action
        return None

    def lost(self, model: str = "") -> Iterator[Request]:
        """Yield the open requests that should have been answered long ago, the newest first."""
        for each in reversed(self.cluster.requests.values()):
            if is_lost(each, self.now_ns) and (not model or each.event.model == model):
                yield still_open(self.cluster, each, self.now_ns)

    def told(self, message: object) -> None:
        """Take in what the controller says of workers beside the records."""
        match message:
            case Devices(workers=devices):
                self.devices = devices
            case Clocks(workers=clocks):
                self.clocks = clocks
            case Unready():
                for worker in set(message.silent) - set(self.unready.silent):
                    self.happenings.silent(self._unix_offset_ns + self.now_ns, worker)
                self.unready = message
            case LearningOfGateways():
                self.learning.take(self.now_ns, message)

    def workers(self) -> list[Standing]:
        """Return what each worker has, and what those had that are gone."""
        return [*map(standing, self.cluster.workers.values()), *self.gone().values()]

    # --- before a record changes how things stand ---

    def _arrives(self, now_ns: int, event: RequestArrived) -> None:
        if event.request_id not in self._lifecycles.cluster.requests:
            self.traffic.arrived(now_ns, event, served=event.model in self._lifecycles.cluster.models)

    def _loads(self, now_ns: int, action: Load) -> None:
        self.history(action.worker).loading(action.model, action.pages)
        self._moved(now_ns, action.model, LOADS)

    def _unloads(self, now_ns: int, action: Unload) -> None:
        worker = self._lifecycles.cluster.workers.get(action.worker)
        placement = None if worker is None else worker.placements.get(action.model)
        if placement is not None:
            self.history(action.worker).unloaded(now_ns, action.model, placement.pages)
        self._moved(now_ns, action.model, EVICTIONS)

    def _moved(self, now_ns: int, model: str, what: int) -> None:
        if model in self._lifecycles.cluster.models:
            self.traffic.moved(now_ns, model, what)

    def _leaves(self, now_ns: int, entry: WorkerJoined | WorkerLeft | DropWorker) -> None:
        worker = self._lifecycles.cluster.workers.get(entry.worker)
        if worker is not None:
            why = "joined again" if isinstance(entry, WorkerJoined) else entry.reason
            self.sessions.append(left(worker, now_ns, why))
            self.happenings.left(self._unix_offset_ns + now_ns, worker.name, why)

    # --- after it has ---

    def _request_ended(self, life: RequestLife) -> None:
        served = life.request.model in self._lifecycles.cluster.models
        self.traffic.add(ended_request(life, self.seq), served=served)

    def _action_ended(self, life: ActionLife) -> None:
        action, worker = ended_action(life, self.seq), life.action.worker
        history, unix_ns = self.history(worker), self._unix_offset_ns + action.done_ns
        history.ended(action.done_ns, action)
        result = life.result
        if result is None:
            return
        if result.status is Status.STOPPING and not history.stopping:
            history.stopping = True
            self.happenings.stopping(unix_ns, worker)
        if result.status is Status.NOT_OPEN:
            return
        if result.status is Status.OK:
            self.happenings.ran(unix_ns, worker, action)
        elif action.kind != "INFER" and (result.status is Status.ENGINE_ERROR or action.kind == "PREPARE"):
            there = self._lifecycles.cluster.workers.get(worker)
            placement = None if there is None else there.placements.get(action.model)
            left_out = placement is not None and placement.state in _GIVEN_UP
            self.happenings.failed(unix_ns, worker, action, left_out=left_out)

    def _sent(self, _now_ns: int, command: Command) -> None:
        self.history(command.worker).lane(kind_of(command)).sent[command.action_id] = self.seq

    def _there(self, now_ns: int, worker: str) -> None:
        """Begin a worker's session, or go on with it after a snapshot."""
        self.history(worker).joined(now_ns)
        self.happenings.joined(self._unix_offset_ns + now_ns, worker)

    def _removed(self, now_ns: int, event: ModelRemoved) -> None:
        self.traffic.forget_model(event.name)
        self.removed[event.name] = now_ns
        if len(self.removed) > self.limits.happenings:
            del self.removed[next(iter(self.removed))]
        self._model(now_ns, REMOVED, event.name)

    def _added(self, now_ns: int, event: ModelAdded) -> None:
        self.removed.pop(event.model.name, None)
        # That a cluster begins is nothing that happened to it.
        if self._began_ns and now_ns - self._began_ns > _BEGINNING_NS:
            self._model(now_ns, ADDED, event.model.name)

    def _model(self, now_ns: int, kind: str, name: str) -> None:
        self.happenings.model(self._unix_offset_ns + now_ns, kind, name)

    def _set_before(self, _now_ns: int, state: OperatorState) -> None:
        for at_ns, event in state.operations:
            self._operated(Operation(at_ns, event.who, event.command))

    def _asked(self, now_ns: int, event: OperatorAsked) -> None:
        self._operated(Operation(now_ns, event.who, event.command))
        match event.command:
            case DrainWorker(worker=worker):
                self.happenings.drained(self._unix_offset_ns + now_ns, worker, event.who)
            case ResumeWorker(worker=worker):
                self.happenings.resumed(self._unix_offset_ns + now_ns, worker, event.who)

    def _turned_away(self, now_ns: int, event: GatewayRefused) -> None:
        self.traffic.turned_away(event.requests)
        self.happenings.turned_away(self._unix_offset_ns + now_ns, event.gateway, event.requests)

    def _operated(self, operation: Operation) -> None:
        """Put a command into its place in time; a snapshot repeats what was granted before it."""
        known = self.operations
        if operation in known:
            return
        index = bisect_right(known, operation.at_ns, key=lambda each: each.at_ns)
        if len(known) < self.limits.operations:
            known.insert(index, operation)
        elif index:
            known.popleft()
            known.insert(index - 1, operation)

    # --- runs and time ---

    def _header(self, now_ns: int, header: SegmentHeader) -> None:
        if self.run and header.run != self.run:
            self.reset(keep_history=False)
        self.run = header.run
        self._unix_offset_ns = header.unix_ns - now_ns
        self.happenings.run(header.unix_ns, header.run)
        self.settings = Settings.of(header.about)

    def _contradiction(self, now_ns: int, entry: object, error: Exception) -> None:
        """Go on after a record that contradicts what is known, and say so once."""
        if not self._contradicted:
            self._contradicted = True
            text = f"{type(entry).__name__}: {type(error).__name__}: {error}"
            self.happenings.contradicted(self._unix_offset_ns + now_ns, text)

    def _reach(self, now_ns: int) -> None:
        """Count the whole seconds that have ended, and forget what is old."""
        self._began_ns = self._began_ns or now_ns
        passed = (now_ns - self._second_ends_ns) // SECOND_NS + 1 if self._second_ends_ns else 0
        self._second_ends_ns = (now_ns // SECOND_NS + 1) * SECOND_NS
        self.traffic.reach(now_ns, passed)
        self._forget_before(now_ns - self.limits.keep_ns)

    def _forget_before(self, before_ns: int) -> None:
        """Forget which actions ended and workers left before an instant, and what is over the bounds."""
        lanes = [lane for each in self.histories.values() for lane in each.lanes]
        most = self.limits.actions
        if sum(map(len, lanes)) > most:
            most = level([len(lane) for lane in lanes], most)
        for lane in lanes:
            lane.forget(before_ns, most)
        sessions = self.sessions
        while sessions and (len(sessions) > self.limits.sessions or sessions[0].left_ns < before_ns):
            sessions.popleft()
        known = {*self._lifecycles.cluster.workers, *self.gone()}
        for name in [name for name in self.histories if name not in known]:
            del self.histories[name]


def level(lengths: list[int], total: int) -> int:
    """Return the greatest length to which all may be cut so that they sum up to at most ``total``."""
    left, count = total, len(lengths)
    for length in sorted(lengths):
        if length * count > left:
            return left // count
        left -= length
        count -= 1
    return max(lengths, default=0)
