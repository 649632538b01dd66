"""The scheduler: events in, commands out (Clockwork, section 5.3 and appendix B).

A driver feeds `Scheduler.handle` what happened, asks `Scheduler.schedule` for the commands, sends them,
and comes back at `Scheduler.next_wakeup_ns` or with the next event. The controller, the simulator and the
log replayer are such drivers. Same calls in, same commands out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import msgspec

from mainspring.cluster.apply import apply
from mainspring.cluster.capacity import kept_pages
from mainspring.cluster.requests import Request
from mainspring.cluster.residency import is_prepared_anywhere, tidy
from mainspring.cluster.snapshot import Part, snapshot
from mainspring.cluster.state import NO_REQUESTS
from mainspring.cluster.status import cluster_status
from mainspring.cluster.validate import validate as validate_state
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Open, Result
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    ModelRestored,
    OperatorAsked,
    QueryArrived,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.metrics import TenantStatus
from mainspring.messages.operating import OperatorCommand, SetGoodputWeight
from mainspring.messages.queries import StepsKnown
from mainspring.messages.scaling import ProviderSaid
from mainspring.messages.status import ClusterStatus
from mainspring.scheduler.alarms import Alarm, WorkerTimers
from mainspring.scheduler.best_effort import BestEffort
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.dispatch import Dispatcher
from mainspring.scheduler.draining import Draining
from mainspring.scheduler.load_queue import DrainReplicas, MissedModels, OpenReplicas, OwnWorkers, Pins
from mainspring.scheduler.membership import Membership
from mainspring.scheduler.opening.scheduling import Openings
from mainspring.scheduler.operating import Operating
from mainspring.scheduler.overdue_actions import OverdueActions
from mainspring.scheduler.overload import Overload
from mainspring.scheduler.policies.registry import make_policy, policy_class
from mainspring.scheduler.preparing import Preparing
from mainspring.scheduler.queries import Queries
from mainspring.scheduler.request_lifecycle import RequestLifecycle
from mainspring.scheduler.residency import Residency
from mainspring.scheduler.scaling import Scaling
from mainspring.scheduler.state import SchedulerState

MISSED_RETRY_NS: Final = 100_000_000
"""Interval at which a missed or pinned model that could not be loaded is tried again."""
ALARMS_PER_CALL: Final = 100
"""Most alarms that one `Scheduler.schedule` handles; the rest is due at once, so that no call takes long."""
LOADS_PER_CALL: Final = 3
"""Most LOADs of the policy that it decides; likewise."""
_ARRIVED: Final = RequestArrived
_RESULT: Final = Result
_WAKEUP: Final = Wakeup
_EXEC: Final = Alarm.EXEC
_LOAD: Final = Alarm.LOAD
_RETRY: Final = Alarm.RETRY
_STALL: Final = Alarm.STALL
_HOLD: Final = Alarm.HOLD
_POLICY: Final = Alarm.POLICY
_SCALE: Final = Alarm.SCALE
_AGAIN: Final = Alarm.AGAIN


class Scheduler:
    """Every choice of the cluster; see the module's text for how to drive it."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Take the configuration; raise ValueError if its policy, or one of its options, is unknown."""
        self.config = config
        self._state = state = SchedulerState(policy_class(config.policy).complete(config))
        self.cluster = state.cluster
        """The state, for drivers that only read it."""
        self._policy = make_policy(config.policy, state)
        self._backlog = BestEffort(state, self._policy)
        self._missed = MissedModels(state, self._policy)
        self._retry_ns = 0
        self._pins = Pins(state)
        self._open_replicas = OpenReplicas(state, self._policy)
        openings = Openings(state, self._backlog, self._open_replicas)
        self._overload = Overload(state, self._policy)
        self._preparing = Preparing(state, openings)
        self._residency = Residency(
            *(state, self._policy, self._missed, self._pins, openings, self._preparing)
        )
        self._lifecycle = RequestLifecycle(
            state,
            self._policy,
            self._preparing,
            self._backlog,
            self._missed,
            openings.admission,
            self._overload,
        )
        self._queries = Queries(state, self._policy, self._lifecycle, self._backlog, self._missed)
        self._overdue_actions = OverdueActions(state, self._policy, self._missed)
        self._dispatcher = Dispatcher(
            state,
            self._policy,
            self._residency,
            self._backlog,
            self._lifecycle,
            self._overdue_actions,
            openings,
            self._overload,
        )
        parts = state, self._policy, self._residency, self._backlog, self._lifecycle, self._pins
        self._own = OwnWorkers(state)
        self._draining = draining = Draining(
            *(state, self._policy, self._backlog, self._lifecycle, self._pins, self._preparing, self._own)
        )
        self._drain_replicas = DrainReplicas(state)
        self._membership = Membership(*parts, self._preparing)
        self._scaling = Scaling(state, draining, self._drain_replicas, self._membership)
        self._operating = Operating(state, self._residency, self._pins, draining, self._scaling)

    def handle(self, now_ns: int, event: Event) -> None:
        """Take an event in. ``now_ns`` never goes back from one call to the next."""
        cluster = self.cluster
        # To find that an event is not of a message's class takes longer than to find that it is.
        kind = type(event)
        if kind is _ARRIVED:
            arrival = cast("RequestArrived", event)
            change = apply(cluster, now_ns, arrival)
            if not cluster.queries or not self._queries.took(now_ns, arrival, change):
                self._lifecycle.arrived(now_ns, arrival, change)
        elif kind is _RESULT:
            result = cast("Result", event)
            if not self._dispatcher.ended(now_ns, result, apply(cluster, now_ns, result)):
                self._membership.drop(now_ns, result.worker, _disagreement(result))
        elif kind is not _WAKEUP:
            self._handle_other(now_ns, event)
        if cluster.queries and cluster.stepped:
            self._queries.share_out(now_ns, cluster.stepped)
            cluster.stepped = []
        if cluster.undecided:
            # Each of them was queued or rejected.
            cluster.undecided = NO_REQUESTS

    def _handle_other(self, now_ns: int, event: Event) -> None:
        """Take an event in that comes seldom."""
        if isinstance(event, WorkerJoined):
            self._membership.replaced(now_ns, event.worker)
        change = apply(self.cluster, now_ns, event)
        match event:
            case RequestCancelled() | GatewayLeft():
                self._lifecycle.withdrawn(now_ns, change)
            case QueryArrived():
                self._queries.arrived(now_ns, event, change)
            case StepsKnown(query_id=query_id):
                self._queries.learnt(now_ns, query_id)
            case ModelAdded() | ModelRemoved():
                self._membership.changed(now_ns, change)
            case ModelRestored():
                self._membership.restored(now_ns, change)
            case WorkerJoined():
                self._membership.joined(now_ns, event, change)
            case WorkerLeft(reason=reason):
                self._membership.left(now_ns, change, reason)
            case OperatorAsked():
                self._operating.carry_out(now_ns, event, change)
                if isinstance(event.command, SetGoodputWeight):
                    self._policy.weighed(now_ns, event.command.model)
            case ProviderSaid():
                self._scaling.provider_said(now_ns, event)

    def schedule(self, now_ns: int) -> list[Command]:
        """Decide everything that is due, and return every command since the last call, in order.

        Where that would take long it does a part of it, and `next_wakeup_ns` is ``now_ns`` or earlier.
        """
        state, alarms = self._state, self._state.alarms
        if self.cluster.regrouped:
            self._regrouped(now_ns)
        on_alarm = 0
        while on_alarm < ALARMS_PER_CALL and (alarm := alarms.take(now_ns)) is not None:
            self._ring(now_ns, alarm[0], alarm[1])
            on_alarm += 1
        self._fill_execs(now_ns)
        if state.take_wants_loads():
            self._fill_loads(now_ns)
        if self._membership.unfinished:
            self._membership.go_on(now_ns)
            if self._membership.unfinished:
                state.alarms.set(now_ns, _AGAIN)
        if self.cluster.device_kinds.behind:
            self.cluster.device_kinds.settle_some()
        if self.cluster.fleeting:
            tidy(self.cluster)
        alarms.drop_pointless()
        return state.drain() if state.commands else []

    def taken(self) -> list[Command]:
        """Return the commands that `handle` has decided on since the last call, in order.

        A driver that logs them between two events keeps the log in the order in which the state changed;
        a driver that does not call it gets them from `schedule`.
        """
        return self._state.drain() if self._state.commands else []

    def next_wakeup_ns(self) -> int | None:
        """Return when `schedule` is to be called even if nothing happens; None for never."""
        return self._state.alarms.next_ns()

    def validate(self) -> None:
        """Check every invariant of the state; raise AssertionError with the story of what is wrong."""
        validate(self._state)
        self._policy.validate()
        self._overload.validate()
        self._backlog.validate()
        self._preparing.validate()
        self._state.tenants.validate()

    def refusal(self, command: OperatorCommand) -> str | None:
        """Return why an operator's command can't be carried out now, and what would be right, or None."""
        return self._operating.refusal(command)

    def prepared_anywhere(self, name: str) -> bool:
        """Say whether any worker has a model prepared."""
        model = self._state.cluster.models.get(name)
        return model is not None and is_prepared_anywhere(self.cluster, model)

    def default_slos_ns(self) -> dict[str, int]:
        """Return the default SLOs that operators set (`Cluster.default_slos_ns`)."""
        return self._state.cluster.default_slos_ns()

    @property
    def queued(self) -> int:
        """Requests that wait for an INFER."""
        return self._state.cluster.queued

    @property
    def departed(self) -> int:
        """The number of workers that left or were dropped, and of models that were removed or replaced."""
        cluster = self._state.cluster
        seen = cluster.models_seen + cluster.workers_seen
        return seen - len(cluster.models) - len(cluster.workers)

    def status(self) -> ClusterStatus:
        """Return the state of the cluster, without what only a driver knows (clock offsets, notes)."""
        status = cluster_status(self._state.cluster, self.config.policy, self.config.max_queue_sizes)
        tenants = self.tenants()
        return msgspec.structs.replace(status, tenants=tenants) if tenants else status

    def tenants(self) -> tuple[TenantStatus, ...]:
        """Return what each tenant has had; nothing if no request has named one."""
        return self._state.tenants.status()

    def snapshot(self) -> Iterator[Part]:
        """Yield the cluster's state, part by part (`cluster.snapshot`)."""
        return snapshot(self._state.cluster)

    def _ring(self, now_ns: int, alarm: Alarm, subject: Request | WorkerTimers | None) -> None:
        """Handle one alarm."""
        state = self._state
        if isinstance(subject, Request):
            self._lifecycle.expire(now_ns, subject)
        elif alarm is _POLICY:
            self._policy.on_alarm(now_ns)
        elif alarm is _SCALE:
            self._scaling.look(now_ns)
        elif alarm is _AGAIN:
            return
        elif subject is None:
            state.wants_loads()
        elif state.cluster.workers.get(subject.worker.name) is (worker := subject.worker):
            if alarm is _EXEC:
                subject.exec_ns = None
                state.wants(worker)
            elif alarm is _HOLD:
                subject.hold_ns = None
                state.wants(worker)
            elif alarm is _LOAD:
                if _is_due(now_ns, subject.load_ns):
                    subject.load_ns = None
                    state.consider_load_room(now_ns, worker)
            elif alarm is _STALL:
                if _is_due(now_ns, subject.stall_ns):
                    subject.stall_ns = None
                    self._overdue_actions.look(now_ns, worker)
            else:
                owed = self._dispatcher.overdue(now_ns, worker)
                if owed is not None:
                    unanswered = self._dispatcher.unanswered(now_ns, worker)
                    self._membership.drop(now_ns, worker.name, owed, unanswered)

    def _regrouped(self, now_ns: int) -> None:
        """Take note of the workers that have another owner than before."""
        changed, self.cluster.regrouped = self.cluster.regrouped, {}
        workers = [each for name, each in changed.items() if self.cluster.workers.get(name) is each]
        self._draining.regrouped(now_ns, workers)

    def _fill_execs(self, now_ns: int) -> None:
        """Give the EXEC executors work that may need some, and those that wide models wake, one by one."""
        state = self._state
        while True:
            if workers := state.take_wanting():
                for worker in workers.values():
                    self._dispatcher.fill(now_ns, worker)
            elif (another := state.idle_workers.next()) is not None:
                self._dispatcher.fill(now_ns, another)
            else:
                break
        state.idle_workers.end()

    def _fill_loads(self, now_ns: int) -> None:
        """Give the LOAD executors work: first pinned models, then the policy's LOADs, then missed models."""
        loaded = 0
        while self._pins and (plan := self._pins.next_load(now_ns)) is not None:
            self._residency.load(now_ns, plan)
        while self._own and (plan := self._own.next_load(now_ns)) is not None:
            self._residency.load(now_ns, plan)
        while (plan := self._policy.next_load(now_ns)) is not None:
            self._residency.load(now_ns, plan)
            loaded += 1
            if loaded == LOADS_PER_CALL:
                self._state.alarms.set(now_ns, _RETRY)
                return
        while self._open_replicas and (plan := self._open_replicas.next_load(now_ns)) is not None:
            self._residency.load(now_ns, plan)
        while self._drain_replicas and (plan := self._drain_replicas.next_load(now_ns)) is not None:
            self._residency.load(now_ns, plan)
        while self._missed and (plan := self._missed.next_load(now_ns)) is not None:
            self._residency.load(now_ns, plan)
        waits = self._missed or self._pins or self._own or self._open_replicas or self._drain_replicas
        if waits and now_ns >= self._retry_ns:
            self._retry_ns = now_ns + MISSED_RETRY_NS
            self._state.alarms.set(self._retry_ns, _RETRY)


def _is_due(now_ns: int, armed_ns: int | None) -> bool:
    """Return whether the nearest alarm is due; an alarm that a nearer one has replaced is not."""
    return armed_ns is not None and armed_ns <= now_ns


def _disagreement(result: Result) -> str:
    return (
        f"action {result.action_id} ended with {result.status.value}, which the controller's state rule out: "
        f"{result.detail}"
    )


def validate(state: SchedulerState) -> None:
    """Check the cluster's state and the scheduler's beside it; raise AssertionError at the first fault."""
    cluster = state.cluster
    validate_state(cluster)
    state.validate()
    for worker in cluster.workers.values():
        _check_loads(state, worker)
    for action_id, worker in state.idle_loads.items():
        assert worker.load.get(action_id) is not None, f"{worker.name} has no LOAD {action_id} outstanding"
    kept = sum([kept_pages(cluster, model) for model in cluster.models.values() if model.pinned])
    assert kept <= Pins(state).room_now, f"models that are kept take {kept} of {Pins(state).room_now} pages"


def _check_loads(state: SchedulerState, worker: Worker) -> None:
    """Check that no LOAD was decided long before its executor is free."""
    name = worker.name
    ahead_ns = max(state.ns.lookahead, state.ns.dispatch_delay)
    for load in worker.load.actions():
        decided_ms = (load.predicted_begin_ns - load.earliest_ns) / 1e6
        assert load.predicted_begin_ns - load.earliest_ns <= ahead_ns, (
            f"{load} was decided {decided_ms:.1f} ms before its executor is free, not {ahead_ns / 1e6:.1f}"
        )
    waits = name not in state.load_room
    opens = any(isinstance(action, Open) for action in worker.exec.actions())
    assert not waits or opens or len(worker.load), f"{name}: LOAD has nothing to do, and no room"
