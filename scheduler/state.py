"""State shared by the parts of the scheduler: the cluster's state, the timers, the idle workers, the commands
that come out next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mainspring.cluster.apply import apply
from mainspring.cluster.deferred_join import ENTERED_AT_ONCE
from mainspring.cluster.device_kinds import SETTLED_AT_ONCE
from mainspring.cluster.execution import Batch
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.requests import Request
from mainspring.cluster.state import Change, Cluster
from mainspring.cluster.timeline import NEVER_NS
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Reject, RejectEvidence
from mainspring.messages.codes import Reason
from mainspring.messages.ids import first_action_id
from mainspring.scheduler.alarms import Alarm, Alarms, WorkerTimers
from mainspring.scheduler.config import SchedulerConfig, completed, milliseconds
from mainspring.scheduler.tenants import Tenants

WIDE_FROM: Final = 8
"""A model on more workers than this may be wide."""
WIDE_PART: Final = 8
"""It is if it is on more than one in this many of those that take work: a choice for one worker looks at wide
models in vain that are on others."""


def is_replicated_widely(cluster: Cluster, model: Model) -> bool:
    """Return whether a model is on so many workers that they are better looked at together."""
    copies = len(model.usable)
    return copies > WIDE_FROM and WIDE_PART * copies > cluster.open_workers


class IdleWorkers:
    """Chooses the workers that are asked for a batch when requests come for a model that many of them hold.

    A model on few workers has all of them asked that would take work. Of those that hold a *wide* model one
    is asked, and the next only if it left requests: 256 idle workers need not be asked for one request.
    `idle` is the set of workers that would take more, so that ``Model.held & idle`` are those to ask.

    A policy may keep an idle worker free for a batch of a wide model that is to grow (`SchedulerState.hold`).
    Other workers of the kind that hold the model would wait for the same. They have no alarm of their own
    (`SchedulerState.wait`), and nobody asks them, for any model, until the first one is asked again and waits
    no more.
    """

    __slots__ = ("_before", "_behind", "_cluster", "_held", "_tried", "_waits", "_wanted", "idle")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.idle = 0
        """The workers that were asked and would have taken more than there was."""
        self._wanted: dict[int, Model] = {}
        """Wide models with requests for which a worker is to be asked, by number."""
        self._held: dict[str, Model] = {}
        """The model whose batch each worker is kept free for, by the worker's name."""
        self._before: Model | None = None
        """The model that the worker which is being asked was kept free for until now."""
        self._behind: dict[int, Model] = {}
        """Models for which no worker is asked while those are kept free."""
        self._tried = 0
        """Workers that had nothing to begin when they were asked at this instant."""
        self._waits = 0
        """Workers that would wait as one does that was asked at this instant."""

    def want(self, model: Model) -> None:
        """Have a worker asked for a wide model."""
        self._wanted[model.number] = model

    def asked(self, timers: WorkerTimers) -> None:
        """Note that a worker is being asked; `busy` or `left_idle` says what came of it."""
        timers.held_for = None
        self._before = self._held.pop(timers.worker.name, None) if self._held else None

    def keep_free(self, worker: Worker, model: Model) -> None:
        """Note that the worker that is being asked waits for a batch of a wide model to grow."""
        self._held[worker.name] = model

    def busy(self, worker: Worker) -> None:
        """Note that a worker that was asked takes no more for now."""
        self.idle &= ~worker.bit
        if self._before is not None:
            self._resume(self._before)

    def left_idle(self, timers: WorkerTimers) -> None:
        """Note that a worker that was asked would take more, or waits (`WorkerTimers.held_for`)."""
        worker, held_for = timers.worker, timers.held_for
        bit = worker.bit
        self.idle |= bit
        self._tried |= bit
        if held_for is not None:
            self._waits |= held_for.held & self._cluster.of_kind[worker.kind]
        if self._before is not None and self._held.get(worker.name) is not self._before:
            self._resume(self._before)

    def forget(self, timers: WorkerTimers) -> None:
        """Forget a worker that is gone."""
        self.asked(timers)
        self.busy(timers.worker)

    def next(self) -> Worker | None:
        """Return the worker to ask next at this instant; None if nobody else is."""
        wanted = self._wanted
        if not wanted:
            return None
        found: Worker | None = None
        untried, passed = self.idle & ~self._tried, 0
        free = untried & ~self._waits
        if not free and not self._behind:
            # Nearly all are behind: where workers keep free for wide models, most calls end here.
            for number in [
                n for n, model in wanted.items() if not (model.queue.dues and model.held & untried)
            ]:
                del wanted[number]
            self._wanted, self._behind = self._behind, wanted
            return None
        # On many workers there are many models, and of more than 62 workers sets are large numbers.
        for number, model in wanted.items():
            if model.queue.dues:
                held = model.held
                if asked := held & free:
                    found = self._cluster.worker_bits.first_of(asked)
                    break
                if held & untried:
                    self._behind[number] = model
            passed += 1
        if found is None:
            wanted.clear()
        elif passed:
            for number in list(islice(wanted, passed)):
                del wanted[number]
        return found

    def end(self) -> None:
        """Note that time goes on: those that were asked may be asked again."""
        self._tried = self._waits = 0

    def validate(self, timers: dict[str, WorkerTimers]) -> None:
        """Check that workers are there that are remembered, and that those kept free will be asked again."""
        workers = self._cluster.workers
        seated = sum([worker.bit for worker in workers.values()])
        assert not self.idle & ~seated, f"idle are {self.idle:x}, of {seated:x}"
        for name, model in self._held.items():
            assert name in workers, f"{name} is kept free for {model.name}, and is gone"
            own = timers[name]
            assert own.held_for is model, f"{name} is kept free for {model.name}, not {own.held_for}"
            assert own.hold_ns is not None, f"{name} is kept free for {model.name}, for ever"

    def _resume(self, model: Model) -> None:
        """Have workers asked for the model that one was kept free for, and for those behind it."""
        self._wanted[model.number] = model
        self._wanted.update(self._behind)
        self._behind.clear()


READY_SLACK_NS: Final = 1_000_000
"""An INFER may be sent this long before its model's LOAD is predicted to end ("will momentarily
complete", Clockwork, section 4.4)."""
IDLE_LOADERS: Final = 8
"""One in this many workers that take work may load what no waiting request needs at once; one in any case."""
LOADERS_LOOKED_AT: Final = 64
"""Workers that are looked at for one that loads a model."""
_EXEC: Final = Alarm.EXEC
_LOAD: Final = Alarm.LOAD
_WATCH: Final = Alarm.WATCH
_STALL: Final = Alarm.STALL
_HOLD: Final = Alarm.HOLD


@dataclass(frozen=True)
class Durations:
    """The configuration's durations in nanoseconds."""

    lookahead: int
    dispatch_delay: int
    response_margin: int
    action_window: int
    load_window: int
    load_capacity: int
    """0 if the configuration leaves it open."""
    idle_load_protect: int
    equal_slack: int
    open_patience: int
    open_within: int
    action_timeout: int
    prepare_timeout: int

    @classmethod
    def of(cls, config: SchedulerConfig) -> Durations:
        """Convert a configuration."""
        given_ms = {name: getattr(config, f"{name}_ms") for name in cls.__dataclass_fields__}
        return cls(**{name: milliseconds(ms or 0.0) for name, ms in given_ms.items()})


class SchedulerState:
    """Shared state of one scheduler."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config = completed(config)
        self.ns = Durations.of(config)
        self.cluster = Cluster(config.estimate_rank, self.ns.dispatch_delay, self.ns.response_margin)
        self.cluster.device_kinds.at_once = SETTLED_AT_ONCE
        self.cluster.entered_at_once = ENTERED_AT_ONCE
        self.has_suspects = False
        """True once any request was a suspect; until then nothing looks for suspects."""
        self._timers: dict[str, WorkerTimers] = {}
        self._wanting: dict[str, Worker] = {}
        """Workers whose EXEC executor may need work."""
        self._resting: dict[str, int] = {}
        """Time at which each worker's EXEC executor may need work, while nothing waits anywhere."""
        self.tenants = Tenants(config.tenant_weights)
        self.idle_workers = IdleWorkers(self.cluster)
        """The workers that are asked next if requests are left for models that many workers hold."""
        self._wants_loads = False
        self._load_room: dict[str, Worker] = {}
        self.load_room: Mapping[str, Worker] = self._load_room
        """Workers whose LOAD executor is not busy for the whole lookahead (`consider_load_room`)."""
        self.idle_loads: dict[int, Worker] = {}
        """The workers of the LOADs under way that no waiting request needs at once, by action."""
        self.alarms = Alarms()
        self.commands: list[Command] = []
        """The commands that come out next, in order."""
        self.query_ended: Callable[[int, Change], None] = _nobody
        """Is told of the pieces that waited when a query was rejected."""
        self._last_action_id = first_action_id(config.epoch)
        self._looked_at = 0
        """Number of the workers with room that came before those that are looked at next."""

    def next_action_id(self) -> int:
        """Return a new action id."""
        self._last_action_id += 1
        return self._last_action_id

    def goodput_weight(self, model: Model) -> float:
        """Return how many others' an answer of a model in time counts as."""
        name = model.base.spec.public_name
        return self.cluster.goodput_weight(name) or self.config.goodput_weights.get(name, 1.0)

    def emit(self, now_ns: int, command: Command, batch: Batch | None = None) -> Change:
        """Apply a command, and add it to those that come out next; return its change.

        ``batch`` is that of an INFER.
        """
        self.commands.append(command)
        return apply(self.cluster, now_ns, command, batch)

    def validate(self) -> None:
        """Check the plans for workers; raise AssertionError at the first fault."""
        for name, timers in self._timers.items():
            assert self.cluster.workers.get(name) is timers.worker, f"{name} has alarms, and is gone"
        self.idle_workers.validate(self._timers)

    def drain(self) -> list[Command]:
        """Return the commands to come out, once."""
        commands, self.commands = self.commands, []
        return commands

    def timers(self, worker: Worker) -> WorkerTimers:
        """Return the alarms that are set for a worker, and until when it is kept free."""
        found = self._timers.get(worker.name)
        if found is None or found.worker is not worker:
            found = self._timers[worker.name] = WorkerTimers(worker)
        return found

    def wants(self, worker: Worker) -> None:
        """Ask the policy for a batch for a worker's EXEC executor in the next `Scheduler.schedule`."""
        self._wanting[worker.name] = worker

    def wants_loads(self) -> None:
        """Ask for LOADs for the executors that have room in the next `Scheduler.schedule`."""
        self._wants_loads = True

    def wants_for_request(self, full_ns: int, worker: Worker) -> None:
        """Ask for a batch for a worker that may run a request that came, unless it is busy at ``full_ns``.

        A busy worker has an alarm set for when it will need work, but for one that `rests`.
        """
        if worker.exec.free_ns <= full_ns + worker.lead_ns:
            self._wanting[worker.name] = worker
        elif self._resting and (when_ns := self._resting.pop(worker.name, 0)):
            self.arm_exec(when_ns, worker)

    def rests(self, when_ns: int, worker: Worker) -> None:
        """Set no alarm for when a worker may need work, until a request comes for its models."""
        self._resting[worker.name] = when_ns

    def take_wanting(self) -> dict[str, Worker]:
        """Return, once, the workers for which a batch is asked, by name; the caller changes nothing in it."""
        workers = self._wanting
        if workers:
            self._wanting = {}
        return workers

    def take_wants_loads(self) -> bool:
        """Return, once, whether LOADs are asked for."""
        wants, self._wants_loads = self._wants_loads, False
        return wants

    def asked(self, timers: WorkerTimers) -> None:
        """Note that the policy is about to be asked for a worker's batches."""
        self.idle_workers.asked(timers)
        if self._resting:
            self._resting.pop(timers.worker.name, None)

    def suspect(self, request: Request) -> None:
        """Have a request run alone from now on: its inputs may be what fails a batch, or ends a worker."""
        request.suspect = self.has_suspects = True

    def forget(self, worker: Worker) -> None:
        """Forget the plans for a worker that is gone."""
        name = worker.name
        self._wanting.pop(name, None)
        self._resting.pop(name, None)
        self.idle_workers.forget(self.timers(worker))
        del self._timers[name]
        self._load_room.pop(name, None)
        for load in worker.load.actions():
            self.idle_loads.pop(load.action_id, None)
        self.wants_loads()

    def arm_exec(self, when_ns: int, worker: Worker) -> None:
        """Ask for a batch for a worker's EXEC executor at an instant, or earlier."""
        timers = self.timers(worker)
        if timers.exec_ns is None or when_ns < timers.exec_ns:
            timers.exec_ns = when_ns
            self.alarms.set(when_ns, _EXEC, timers)

    def hold(self, until_ns: int, worker: Worker, model: Model | None = None) -> None:
        """Have a worker's EXEC executor kept free, and looked at by an instant.

        ``model`` is that of the batch if it is wide: others that hold it may `wait` for the same.
        """
        timers = self.timers(worker)
        timers.held_until_ns = until_ns
        self.look_after_hold(timers)
        if model is not None:
            timers.held_for = model
            self.idle_workers.keep_free(worker, model)

    def look_after_hold(self, timers: WorkerTimers) -> None:
        """Ask for a batch for a worker once it is no longer kept free; earlier plans are void."""
        until_ns = timers.held_until_ns
        if timers.hold_ns != until_ns:
            timers.hold_ns = until_ns
            self.alarms.set(until_ns, _HOLD, timers)

    def wait(self, until_ns: int, worker: Worker, model: Model) -> None:
        """Have a worker's EXEC executor kept free for a batch for which another one is held."""
        timers = self.timers(worker)
        timers.held_until_ns = until_ns
        timers.hold_ns = None
        timers.held_for = model

    def consider_load_room(self, now_ns: int, worker: Worker) -> None:
        """Note whether a LOAD may be decided for a worker: whether LOAD is free there within the lookahead.

        If it is not, an alarm asks again when it will be. If a LOAD should have ended by now, only its result
        says when it is free.
        """
        load, lookahead_ns = worker.load, self.ns.lookahead
        free_ns = load.available_ns(now_ns, now_ns)
        if free_ns - now_ns <= lookahead_ns:
            self._load_room[worker.name] = worker
            self._wants_loads = True
            # If a LOAD is overdue by then, nothing may be decided behind it any more.
            when_ns = load.pushed_beyond_ns(lookahead_ns)
        else:
            self._load_room.pop(worker.name, None)
            when_ns = NEVER_NS if load.overruns(now_ns) else free_ns - lookahead_ns
        timers = self.timers(worker)
        armed_ns = timers.load_ns
        if when_ns != NEVER_NS and (armed_ns is None or when_ns < armed_ns):
            timers.load_ns = when_ns
            self.alarms.set(when_ns, _LOAD, timers)

    def with_room(self) -> Collection[Worker]:
        """Return workers whose LOAD executor has room: all, or of very many some, each time the next ones.

        The best of some is nearly as good as the best of all, and to look for it takes no longer with more.
        """
        room = self._load_room
        if len(room) <= LOADERS_LOOKED_AT:
            return room.values()
        workers = list(room.values())
        first = self._looked_at % len(workers)
        self._looked_at = first + LOADERS_LOOKED_AT
        return [*workers[first:], *workers[:first]][:LOADERS_LOOKED_AT]

    def watch_for_stall(self, when_ns: int, worker: Worker) -> None:
        """Have a worker looked at by an instant for actions that take far longer than predicted."""
        timers = self.timers(worker)
        if timers.stall_ns is None or when_ns < timers.stall_ns:
            timers.stall_ns = when_ns
            self.alarms.set(when_ns, _STALL, timers)

    @property
    def may_load_idly(self) -> bool:
        """Return whether one more LOAD may be sent that no waiting request needs at once.

        Few run at a time, so that not many workers evict models at once.
        """
        return len(self.idle_loads) < max(1, self.cluster.open_workers // IDLE_LOADERS)

    @property
    def load_is_idle(self) -> bool:
        """Return whether any LOAD executor has nothing to do."""
        for worker in self._load_room.values():  # noqa: SIM110 - compiled, a generator takes longer
            if not len(worker.load):
                return True
        return False

    def watch(self, when_ns: int, worker: Worker) -> None:
        """Have a worker checked for owed results at an instant, unless it will be checked anyway."""
        timers = self.timers(worker)
        if not timers.watched:
            timers.watched = True
            self.alarms.set(when_ns, _WATCH, timers)

    def soonest_ns(self, now_ns: int) -> int:
        """Return when an action that is sent now could begin."""
        return now_ns + self.ns.dispatch_delay

    def begin_ns(self, now_ns: int, placement: Placement, index: int, available_ns: int) -> int:
        """Return when a batch of the size of an index could begin on a worker if it were sent now.

        ``available_ns`` is when EXEC could; weights and inputs have to be there too.
        """
        soonest_ns = now_ns + self.ns.dispatch_delay
        inputs_at_ns = placement.worker.exec.inputs_at_ns(soonest_ns, placement.times.transfer_ns[index])
        return max(available_ns, inputs_at_ns, placement.ready_ns(now_ns))

    def last_start_ns(self, request: Request) -> int:
        """Return the last instant at which dispatching a request could still meet its deadline."""
        assert request.due_ns is not None
        return request.due_ns - request.model.fastest_ns(request.rows) - self.ns.dispatch_delay

    def reject(
        self,
        now_ns: int,
        request: Request,
        reason: Reason,
        detail: str,
        earliest_finish_ns: int | None = None,
        evidence: RejectEvidence | None = None,
    ) -> None:
        """Answer a request with an error; with a piece that its query needs, the whole query."""
        if request.charged_ns:
            self.tenants.rejected(request, reason, self._soonest_end_ns(request))
        query = request.query
        if query is None or not query.event.steps[request.event.step].required:
            self.emit(now_ns, Reject(request.id, reason, detail, earliest_finish_ns, evidence))
            return
        steps = query.event.steps
        step = f"step {request.event.step}, " if len(steps) > 1 else ""
        ended = f"{query.done[request.event.step]} of {steps[request.event.step].rows} rows have ended"
        said = f"{step}a piece of {request.rows} rows, when {ended}: {detail}"
        change = self.emit(now_ns, Reject(query.id, reason, said, earliest_finish_ns, evidence))
        self.query_ended(now_ns, change)

    def _soonest_end_ns(self, request: Request) -> int:
        """Return when a request could have ended with nothing before it but the LOAD that it needs."""
        model = request.model
        load_ns = 0
        if request.cold:
            load_ns = min([load.ns for load in model.load_times.values()], default=0)
        return request.arrived_ns + self.ns.dispatch_delay + load_ns + model.fastest_ns(request.rows)


def _nobody(now_ns: int, change: Change) -> None:
    """Tell nobody."""
