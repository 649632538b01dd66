"""Operators' commands: drain a worker, pin a model, load and unload one by hand.

A command is first checked (`Operating.refusal`) and, if nothing forbids it, carried out as an event of its
own, so that a log holds exactly what was done.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.capacity import unassignable, unknown_kind, unpinnable, unscalable
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import at, hosts
from mainspring.cluster.state import Change
from mainspring.messages.actions import LoadReason
from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import (
    AssignModel,
    DrainWorker,
    LoadOn,
    MoveWorker,
    OperatorCommand,
    PinModel,
    ResumeWorker,
    ScaleWorkers,
    SetDefaultSlo,
    SetGoodputWeight,
    SetGraph,
    SetMaxQueue,
    UnloadFrom,
    UnpinModel,
    subject,
)
from mainspring.scheduler.draining import Draining
from mainspring.scheduler.load_queue import Pins
from mainspring.scheduler.placing import plan_on_freest
from mainspring.scheduler.residency import Residency
from mainspring.scheduler.scaling import Scaling
from mainspring.scheduler.state import SchedulerState

NAMED: Final = 8
"""Most workers or models that a refusal names as alternatives."""
IDLE_ON_WORKER: Final = "a model is loaded on whichever worker is idle first; name none"


class Operating:
    """Carries out operators' commands."""

    def __init__(
        self,
        state: SchedulerState,
        residency: Residency,
        pins: Pins,
        draining: Draining,
        scaling: Scaling,
    ) -> None:
        self._state = state
        self._residency = residency
        self._pins = pins
        self._draining = draining
        self._scaling = scaling

    def refusal(self, command: OperatorCommand) -> str | None:
        """Return why a command can't be carried out now and what would be right, or None if it can."""
        match command:
            case DrainWorker(worker=name):
                return self._no_worker(name)
            case ResumeWorker(worker=name):
                return None if name in self._state.cluster.drained else f"{name!r} is not drained"
            case SetDefaultSlo() | SetMaxQueue() | SetGoodputWeight() | SetGraph():
                return None  # They concern gateways alone, or what comes.
            case UnpinModel(model=name):
                return None if name in self._state.cluster.pinned else f"{name!r} is not pinned"
            case ScaleWorkers():
                return unscalable(self._state.cluster, command)
            case AssignModel(model=name):
                known = name in self._state.cluster.models or not command.workers
                fault = unassignable(self._state.cluster, command) or unknown_kind(
                    self._state.cluster, command.kind
                )
                return fault if known else self._no_model(name)
            case MoveWorker(worker=name):
                return self._no_worker(name) or self._immovable(name)
        model = self._state.cluster.models.get(command.model)
        if model is None:
            return self._no_model(command.model)
        if isinstance(command, PinModel):
            return unpinnable(self._state.cluster, model)
        if isinstance(command, LoadOn) and command.idle:
            return None if command.worker is None else IDLE_ON_WORKER
        if command.worker is not None and self._no_worker(command.worker):
            return self._no_worker(command.worker)
        return (
            self._unloadable(command) if isinstance(command, UnloadFrom) else self._unplaced(model, command)
        )

    def carry_out(self, now_ns: int, event: OperatorAsked, change: Change) -> None:
        """Carry out an operator's command; one that can't be carried out (any more) changes nothing."""
        command = event.command
        if not change.taken and (subject(command) is not None or self.refusal(command) is not None):
            return
        match command:
            case DrainWorker():
                if change.worker is not None:
                    self._draining.drained(now_ns, change.worker)
            case ResumeWorker():
                if change.worker is not None:
                    self._draining.resumed(now_ns, change.worker)
            case ScaleWorkers():
                self._scaling.settle(now_ns)
            case MoveWorker(worker=name, controller=to):
                self._scaling.move(now_ns, name, to)
            case PinModel():
                self._pins.enforce()
            case UnpinModel():
                self._pins.enforce()
                self._state.wants_loads()
            case LoadOn(model=name, idle=True):
                self._residency.load_when_idle(self._state.cluster.models[name])
            case LoadOn(model=name):
                for worker in self._state.cluster.workers.values():
                    self._state.consider_load_room(now_ns, worker)
                room = self._state.load_room
                cluster = self._state.cluster
                plan = plan_on_freest(cluster, cluster.models[name], room, command.worker)
                if plan is not None:
                    plan.reason = LoadReason.OPERATOR
                    self._residency.load(now_ns, plan)
            case UnloadFrom():
                for placement in self._holding(command):
                    self._residency.unload(now_ns, placement)
                self._state.wants_loads()

    def _no_worker(self, name: str) -> str | None:
        workers = self._state.cluster.workers
        if name in workers:
            return None
        connected, more = ", ".join(sorted(workers)[:NAMED]), len(workers) - NAMED
        others = f" and {more} more" if more > 0 else ""
        return f"there is no worker {name!r}; connected are {connected or 'none'}{others}"

    def _immovable(self, name: str) -> str | None:
        """Return why a worker that is connected can't go to another controller."""
        cluster = self._state.cluster
        if name in cluster.moving:
            return f"{name} is on its way to {cluster.moving[name]} already"
        if name in cluster.retiring:
            return f"{name} is about to be stopped: fewer workers of its kind are wanted"
        staying = [each for each in cluster.workers.values() if not each.retiring and each.name != name]
        if not staying:
            return f"{name} is the only worker that stays here: its models need another"
        return None

    def _no_model(self, name: str) -> str:
        models = self._state.cluster.models.values()
        versions = [each.name for each in models if name and each.spec.served_as == name]
        if versions:
            return f"{name!r} is served in versions; name one of them: {', '.join(versions[:NAMED])}"
        return f"there is no model {name!r}"

    def _unloadable(self, command: UnloadFrom) -> str | None:
        """Return why a model's pages can't be given up now."""
        name, held = command.model, self._holding(command)
        if not held:
            return self._not_held(command)
        if name in self._state.cluster.pinned:
            return f"{name!r} is pinned; unpin it first"
        busy = [placement for placement in held if placement.infers]
        if busy:
            return f"{busy[0].worker.name} has {busy[0].infers} INFERs of {name!r} outstanding; ask again"
        return None

    def _not_held(self, command: UnloadFrom) -> str:
        for placement in self._state.cluster.models[command.model].placements.values():
            if placement.state is State.LOADING and command.worker in (None, placement.worker.name):
                return f"{command.model!r} is being loaded on {placement.worker.name}; ask again"
        where = "anywhere" if command.worker is None else f"on {command.worker}"
        return f"{command.model!r} is not resident {where}"

    def _holding(self, command: UnloadFrom) -> list[Placement]:
        placements = self._state.cluster.models[command.model].placements.values()
        held = [
            placement
            for placement in placements
            if placement.state is State.RESIDENT and command.worker in (None, placement.worker.name)
        ]
        return sorted(held, key=lambda placement: placement.worker.number)

    def _unplaced(self, model: Model, command: LoadOn) -> str | None:
        """Return why a model can't be loaded now."""
        cluster = self._state.cluster
        if plan_on_freest(cluster, model, self._state.load_room, command.worker) is not None:
            return None
        if not cluster.workers:
            return "no worker is connected"
        workers = [worker for worker in hosts(cluster, model) if command.worker in (None, worker.name)]
        if len(workers) == 1:
            has_room = workers[0].name in self._state.load_room
            return _why_not(at(cluster, model, workers[0], keep=False), has_room)
        if not workers:
            return f"{model.name!r} is only just replacing another model of its name; ask again"
        if all(worker.name in model.usable for worker in workers):
            return f"{model.name!r} is resident, or loading, on every worker"
        return f"no worker can load {model.name!r} now: see what each says by naming it"


def _why_not(placement: Placement, has_room: bool) -> str:
    """Say why a model can't be loaded on a worker now."""
    name, worker = placement.model.name, placement.worker
    if worker.retiring:
        return f"{worker.name} is to leave: fewer workers are wanted"
    if worker.draining:
        return f"{worker.name} is drained; resume it first"
    if placement.usable:
        return f"{name!r} is {placement.state.value} on {worker.name} already"
    if placement.model.pages_on(worker) > worker.pages.size:
        need = placement.model.pages_on(worker)
        return f"{name!r} needs {need} pages and {worker.name} has {worker.pages.size}"
    if placement.failed:
        return f"{worker.name} can't run {name!r}: {placement.detail}"
    if not placement.loadable:
        return f"{name!r} is {placement.state.value} on {worker.name}; it must be prepared first"
    if not has_room:
        return f"{worker.name} has LOADs for the next moments; ask again"
    return f"every page of {worker.name} that {name!r} could take is in use or pinned; ask again"
