"""Models that should be loaded, by reason: pinned before demand, demand and copies before missed.

Each reason has a queue in the order in which it came up: `Pins` for models that operators want resident,
`MissedModels` for those that requests or operators asked for and no executor had to load at once. What
requests wait for, and which busy models get further copies, is the policy's (`Policy.next_load`), in an order
of its own; `Scheduler` asks the queues and the policy in turn. `LoadPlan.reason` says which of them a LOAD
came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Final

from mainspring.cluster.capacity import PINNED_SHARE, kept_pages
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import able, at, is_barred, is_hopeless, is_loadable
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import LoadReason
from mainspring.scheduler.placing import LoadPlan, plan_load, plan_on_freest
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.state import SchedulerState

LOOKED_AT: Final = 8
"""Models that are looked at each time for one that can be loaded."""
FORGOTTEN: Final = 64
"""Models that need no LOAD any more and leave each time, at most."""
TRIED_AT: Final = 8
"""Idle workers that are tried for each of them; the next time it is the next ones' turn."""
PLACEMENTS_AT_ONCE: Final = 128
"""Once models on as many workers were looked at, the others wait for the next time."""


class ModelQueue(ABC):
    """Models that should be loaded for one reason, each once, in the order in which the reason came up."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._queued: OrderedDict[str, None] = OrderedDict()
        self._tried = 0
        """Number of idle workers that were tried in vain since one was found."""

    def __bool__(self) -> bool:
        """Return whether any model is to be loaded."""
        return bool(self._queued)

    def add(self, model: Model) -> None:
        """Have a model loaded; one that is queued keeps its place."""
        self._queued[model.name] = None
        self._state.wants_loads()

    def first_plan(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the first model that a worker can take now, and take the model out.

        Models that need no LOAD any more leave; those that no worker can take now go to the end.
        """
        left, looked_at, forgotten = PLACEMENTS_AT_ONCE, 0, 0
        # Those that were looked at stand at the end, so that fewer than `LOOKED_AT` are not looked at twice.
        while left > 0 and looked_at < min(LOOKED_AT, len(self._queued)) and forgotten < FORGOTTEN:
            name = next(iter(self._queued))
            model = self._state.cluster.models.get(name)
            if model is None or is_hopeless(self._state.cluster, model) or not self._needs(model):
                self._forget(name)
                forgotten += 1
                continue
            plan = self._plan(now_ns, model)
            left -= len(self._state.cluster.workers)
            looked_at += 1
            if plan is not None:
                self._tried = 0
                self._forget(name)
                return plan
            self._queued.move_to_end(name)
        return None

    def _first_idle(self, now_ns: int, reason: LoadReason) -> LoadPlan | None:
        """Return `first_plan` as one that only an idle LOAD executor takes, and why."""
        if not self._queued or not self._state.may_load_idly:
            return None
        plan = self.first_plan(now_ns)
        if plan is not None:
            plan.idle = True
            plan.reason = reason
        return plan

    def _idle(self, model: Model) -> list[Placement]:
        """Return where a model could be loaded at once and LOAD has nothing to do, the freest worker first.

        Of many workers these are only some.
        """
        idle = [worker for worker in able(model, self._state.with_room()) if not len(worker.load)]
        idle.sort(key=lambda worker: (-worker.pages.free, worker.number))
        if len(idle) > TRIED_AT:
            first = self._tried % len(idle)
            self._tried += TRIED_AT
            idle = [*idle[first:], *idle[:first]][:TRIED_AT]
        return [at(self._state.cluster, model, worker) for worker in idle]

    def _forget(self, name: str) -> None:
        del self._queued[name]

    @abstractmethod
    def _needs(self, model: Model) -> bool:
        """Return whether a model should still be loaded."""

    @abstractmethod
    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        """Return how a model could be loaded now, None if no worker can take it."""


class Pins(ModelQueue):
    """Keeps pinned models resident.

    Were they all that a worker's memory holds, no other model could be loaded there. So what may be pinned is
    a share of all workers' pages, and what is kept the same share of the pages of those that take work; which
    workers do may change at any time, and with them which models are kept.
    """

    @property
    def room_now(self) -> int:
        """Return how many pages they may take of the workers that take work."""
        workers = self._state.cluster.workers.values()
        return int(PINNED_SHARE * sum([each.pages.size for each in workers if each.open]))

    def enforce(self) -> None:
        """Find which models are kept, those first that were pinned first: pins or workers have changed."""
        room = self.room_now if self._state.cluster.pinned else 0
        for name in self._state.cluster.pinned:
            model = self._state.cluster.models.get(name)
            if model is None:
                continue
            pages = kept_pages(self._state.cluster, model)
            model.pinned = pages <= room
            if model.pinned:
                room -= pages
                self.keep(model)

    def keep(self, model: Model) -> None:
        """Have a model that is kept loaded if it is resident nowhere."""
        if model.pinned and not model.usable:
            self.add(model)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return how to load a model that is kept and resident nowhere, over the least recently used.

        It waits for no executor to be idle: on a cluster that is busy all the time none ever is.
        """
        plan = self.first_plan(now_ns)
        if plan is not None:
            plan.reason = LoadReason.PINNED
        return plan

    def _needs(self, model: Model) -> bool:
        return model.pinned and not model.usable

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:  # noqa: ARG002 - on any worker with room
        return plan_on_freest(self._state.cluster, model, self._state.load_room)


class OwnWorkers(ModelQueue):
    """Loads models on all workers of their own (`cluster.assigning`)."""

    def enforce(self) -> None:
        """Have each of them loaded where it is not: owners have changed."""
        for name in dict.fromkeys(self._state.cluster.owners.values()):
            self.add(self._state.cluster.models[name])

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return how to load a model on a worker of its own, over the least recently used."""
        plan = self.first_plan(now_ns)
        if plan is not None:
            plan.reason = LoadReason.OPERATOR
            self.add(plan.placement.model)
        return plan

    def _needs(self, model: Model) -> bool:
        workers = self._state.cluster.workers.values()
        return any(self._lacks(model, worker) for worker in workers)

    def _lacks(self, model: Model, worker: Worker) -> bool:
        """Return whether a model is to be loaded on a worker, once that can be."""
        stays = worker.open and not worker.retiring and not is_barred(model, worker)
        return worker.owner == model.name and stays and worker.name not in model.usable

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:  # noqa: ARG002 - on any of its own with room
        for worker in able(model, self._state.with_room()):
            if worker.name not in model.usable:
                plan = plan_load(at(self._state.cluster, model, worker))
                if plan is not None:
                    return plan
        return None


class MissedModels(ModelQueue):
    """Models that requests asked for in vain, or operators for at a moment when LOAD is idle.

    The paper's loads only ever follow demand that a LOAD can still save, so that a model whose LOAD and EXEC
    together exceed its SLO would never be loaded: idle LOAD executors load it after its first miss, and
    models that only best-effort requests wait for.
    """

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        super().__init__(state)
        self._policy = policy
        self._operators: dict[str, None] = {}
        """The queued models that operators asked for."""

    def want(self, model: Model) -> None:
        """Note that a model would have served a request, had it been resident."""
        if self._needs(model.base):
            self.add(model.base)

    def operator_wants(self, model: Model) -> None:
        """Note that an operator asks for a model, whether or not the configuration has idle loads."""
        if not model.holders:
            self._operators[model.name] = None
            self.want(model)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return a missed model to load on an idle LOAD executor, over victims that nobody used lately.

        While none is idle no model is looked at, and each keeps its place.
        """
        state = self._state
        if not self._queued or not state.may_load_idly or not state.load_is_idle:
            return None
        plan = self.first_plan(now_ns)
        if plan is not None:
            plan.idle = True
        return plan

    def _forget(self, name: str) -> None:
        super()._forget(name)
        self._operators.pop(name, None)

    def _needs(self, model: Model) -> bool:
        """Return whether a model may be loaded here: nothing else loads one for best-effort requests."""
        if model.holders:
            return False
        return bool(self._state.config.idle_loads or model.waiting_idly or model.name in self._operators)

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        """Find the idle worker with the most free pages that can take a model."""
        for placement in self._idle(model):
            asked = model.name in self._operators
            plan = self._policy.plan_idle_load(now_ns, placement)
            if plan is None and asked:
                plan = plan_load(placement, now_ns - self._state.ns.idle_load_protect)
            if plan is not None:
                plan.reason = LoadReason.OPERATOR if asked else LoadReason.MISSED
                return plan
        return None


class OpenReplicas(ModelQueue):
    """Models that only one worker holds, which is to open an executable, and that requests come for.

    An idle LOAD executor loads each on another worker, so that its requests need not wait for the OPEN.
    """

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        super().__init__(state)
        self._policy = policy

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return such a model to load on an idle LOAD executor, over victims that the policy spares."""
        return self._first_idle(now_ns, LoadReason.REPLICATION)

    def _needs(self, model: Model) -> bool:
        return len(model.usable) == 1

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        for placement in self._idle(model):
            plan = self._policy.plan_idle_load(now_ns, placement)
            if plan is not None:
                return plan
        return None


class DrainReplicas(ModelQueue):
    """Models that only workers hold which are to leave: others load them while LOAD is idle.

    None goes for it that was used later than the model, and none that requests wait for: a cluster whose
    memory is full keeps what is used most.
    """

    def __init__(self, state: SchedulerState) -> None:
        super().__init__(state)
        self._let_go: set[str] = set()
        """Models that fit on no worker that stays."""

    def begin(self, worker: Worker) -> None:
        """Have others load what only a worker holds that is to leave, the last used first."""
        alone = sorted(self.alone_on(worker), key=_last_used, reverse=True)
        for placement in alone:
            self.add(placement.model)

    def end(self) -> None:
        """Forget which models fitted nowhere: nobody is to leave any more."""
        self._let_go.clear()

    def alone_on(self, worker: Worker) -> list[Placement]:
        """Return what a worker holds and no other one that stays."""
        held = worker.lru.values()
        return [each for each in held if each.usable and not _is_held(each.model, State.RESIDENT, worker)]

    def lacks(self, worker: Worker) -> bool:
        """Return whether others have yet to load what a worker holds; what no longer is on its way is
        queued again."""
        lacking = [each.model for each in self.alone_on(worker) if each.model.name not in self._let_go]
        for model in lacking:
            if model.name not in self._queued and self._needs(model):
                self.add(model)
        return bool(lacking)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return such a model to load on an idle LOAD executor."""
        return self._first_idle(now_ns, LoadReason.TAKEOVER)

    def _needs(self, model: Model) -> bool:
        if not model.usable or model.name in self._let_go:
            return False
        return not _is_held(model, None, None)

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:  # noqa: ARG002 - on any worker with room
        last_used_ns = max([each.base.last_used_ns for each in model.usable.values()])
        for placement in self._idle(model):
            plan = plan_load(placement, last_used_ns)
            if plan is not None:
                return plan
        if not self._may_come_anywhere(model):
            self._let_go.add(model.name)
        return None

    def _may_come_anywhere(self, model: Model) -> bool:
        return any(self._may_come(model, worker) for worker in self._state.cluster.workers.values())

    def _may_come(self, model: Model, worker: Worker) -> bool:
        """Return whether a worker that can't load a model now may be able to in a moment."""
        if worker.retiring or not worker.open or model.absent & worker.bit or is_barred(model, worker):
            return False
        busy = len(worker.load) > 0 or worker.name not in self._state.load_room
        return busy or not is_loadable(model, worker)


def _last_used(placement: Placement) -> int:
    return placement.last_used_ns


def _is_held(model: Model, state: State | None, but: Worker | None) -> bool:
    """Return whether a worker that stays, another than ``but``, has a model in a state; None: or is
    loading it."""
    for placement in model.usable.values():
        worker = placement.worker
        if worker is not but and not worker.retiring and state in (None, placement.state):
            return True
    return False
