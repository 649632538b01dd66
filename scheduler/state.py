"""What the parts of the scheduler share: the cluster's state, the timers, the commands that come out next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from mainspring.cluster.apply import apply
from mainspring.cluster.device_kinds import SETTLED_AT_ONCE
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.requests import Request
from mainspring.cluster.state import Cluster
from mainspring.cluster.timeline import NEVER_NS
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Reject, RejectEvidence
from mainspring.messages.codes import Reason
from mainspring.scheduler.alarms import Alarm, Alarms
from mainspring.scheduler.config import SchedulerConfig, completed, milliseconds
from mainspring.scheduler.idle_workers import IdleWorkers

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
        self.suspects = False
        """Whether any request was ever a suspect; until one is, nothing looks for suspects."""
        self.dirty: dict[str, Worker] = {}
        """Workers whose EXEC executor may need work."""
        self.unarmed: dict[str, int] = {}
        """By worker, when its EXEC executor may need work, while nothing waits anywhere: the next request for
        a model that it holds has it looked at then (`arm_exec`)."""
        self.idle_workers = IdleWorkers(self.cluster)
        """Who else is asked if requests are left for models that many workers hold."""
        self.loads_dirty = False
        """Whether the LOAD executors with room may need work."""
        self.load_room: dict[str, Worker] = {}
        """Workers whose LOAD executor is not busy for the whole lookahead (`consider_load_room`)."""
        self.idle_loads: dict[int, Worker] = {}
        """The workers of the LOADs under way that no waiting request needs at once, by action."""
        self.alarms = Alarms()
        self.commands: list[Command] = []
        """The commands that come out next, in order."""
        self._action_count = 0
        self._looked_at = 0
        """How many of the workers with room came before those that are looked at next."""

    def next_action_id(self) -> int:
        """Return a new action id."""
        self._action_count += 1
        return self._action_count

    def goodput_weight(self, model: Model) -> float:
        """Return how many others' an answer of a model in time counts as."""
        name = model.base.spec.public_name
        return self.cluster.goodput_weight(name) or self.config.goodput_weights.get(name, 1.0)

    def emit(self, now_ns: int, command: Command) -> None:
        """Apply a command, and add it to those that come out next."""
        apply(self.cluster, now_ns, command)
        self.commands.append(command)

    def drain(self) -> list[Command]:
        """Return the commands to come out, once."""
        commands, self.commands = self.commands, []
        return commands

    def arm_exec(self, when_ns: int, worker: Worker) -> None:
        """Have a worker's EXEC executor looked at by an instant."""
        if worker.exec_alarm_ns is None or when_ns < worker.exec_alarm_ns:
            worker.exec_alarm_ns = when_ns
            self.alarms.set(when_ns, _EXEC, worker)

    def hold(self, until_ns: int, worker: Worker, model: Model | None = None) -> None:
        """Have a worker's EXEC executor kept free, and looked at by an instant.

        ``model`` is that of the batch if it is wide: others that hold it may `wait` for the same.
        """
        worker.held_until_ns = until_ns
        self.look_after_hold(worker)
        if model is not None:
            worker.held_for = model
            self.idle_workers.keep_free(worker, model)

    def look_after_hold(self, worker: Worker) -> None:
        """Have a worker's EXEC executor looked at once it is no longer kept free; earlier plans are void."""
        until_ns = worker.held_until_ns
        if worker.hold_alarm_ns != until_ns:
            worker.hold_alarm_ns = until_ns
            self.alarms.set(until_ns, _HOLD, worker)

    def wait(self, until_ns: int, worker: Worker, model: Model) -> None:
        """Have a worker's EXEC executor kept free for a batch for which another one is held."""
        worker.held_until_ns = until_ns
        worker.hold_alarm_ns = None
        worker.held_for = model

    def consider_load_room(self, now_ns: int, worker: Worker) -> None:
        """Note whether a LOAD may be decided for a worker: whether LOAD is free there within the lookahead.

        If it is not, an alarm asks again when it will be. If a LOAD should have ended by now, only its result
        says when it is free.
        """
        load, lookahead_ns = worker.load, self.ns.lookahead
        free_ns = load.available_ns(now_ns, now_ns)
        if free_ns - now_ns <= lookahead_ns:
            self.load_room[worker.name] = worker
            self.loads_dirty = True
            # If a LOAD is overdue by then, nothing may be decided behind it any more.
            when_ns = load.pushed_beyond_ns(lookahead_ns)
        else:
            self.load_room.pop(worker.name, None)
            when_ns = NEVER_NS if load.overruns(now_ns) else free_ns - lookahead_ns
        armed_ns = worker.load_alarm_ns
        if when_ns != NEVER_NS and (armed_ns is None or when_ns < armed_ns):
            worker.load_alarm_ns = when_ns
            self.alarms.set(when_ns, _LOAD, worker)

    def with_room(self) -> Collection[Worker]:
        """Return workers whose LOAD executor has room: all, or of very many some, each time the next ones.

        The best of some is nearly as good as the best of all, and to look for it takes no longer with more.
        """
        room = self.load_room
        if len(room) <= LOADERS_LOOKED_AT:
            return room.values()
        workers = list(room.values())
        first = self._looked_at % len(workers)
        self._looked_at = first + LOADERS_LOOKED_AT
        return [*workers[first:], *workers[:first]][:LOADERS_LOOKED_AT]

    def watch_for_stall(self, when_ns: int, worker: Worker) -> None:
        """Have a worker looked at by an instant for actions that take far longer than predicted."""
        if worker.stall_alarm_ns is None or when_ns < worker.stall_alarm_ns:
            worker.stall_alarm_ns = when_ns
            self.alarms.set(when_ns, _STALL, worker)

    @property
    def may_load_idly(self) -> bool:
        """Whether one more LOAD may be sent that no waiting request needs at once.

        Few run at a time, so that not many workers evict models at once.
        """
        return len(self.idle_loads) < max(1, self.cluster.open_workers // IDLE_LOADERS)

    @property
    def load_is_idle(self) -> bool:
        """Whether any LOAD executor has nothing to do."""
        for worker in self.load_room.values():  # noqa: SIM110 - compiled, a generator takes longer
            if not len(worker.load):
                return True
        return False

    def watch(self, when_ns: int, worker: Worker) -> None:
        """Have a worker checked for owed results at an instant, unless it will be checked anyway."""
        if not worker.watched:
            worker.watched = True
            self.alarms.set(when_ns, _WATCH, worker)

    def wake(self, worker: Worker) -> None:
        """Have the worker's EXEC executor looked at by the next `schedule`."""
        self.dirty[worker.name] = worker

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
        """Answer a request with an error."""
        self.emit(now_ns, Reject(request.id, reason, detail, earliest_finish_ns, evidence))
