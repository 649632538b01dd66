"""Models and workers come and go, and operators drain and pin."""

from __future__ import annotations

from typing import Final

from mainspring.cluster.assigning import regroup, wish
from mainspring.cluster.capacity import unassignable, unpinnable, unscalable
from mainspring.cluster.deferred_join import DeferredJoin, orphan, settle
from mainspring.cluster.device_kinds import forget_kind
from mainspring.cluster.execution import at_work
from mainspring.cluster.models import Losses, Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import at, find, give_up, hosts, leave, of_worker
from mainspring.cluster.state import NOTHING, Change, Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Infer, Load, Open, Prepare, Result, kind_of
from mainspring.messages.codes import Status
from mainspring.messages.events import OperatorAsked, Resident, WorkerJoined
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import (
    AssignModel,
    DrainWorker,
    OperatorCommand,
    PinModel,
    ResumeWorker,
    ScaleWorkers,
    SetGraph,
    UnpinModel,
    subject,
)

OVERDUE_ATTEMPTS: Final = 3
"""Number of times in a row that a worker may end a model's INFER, or be dropped for it, before the model is
given up on that worker."""
OVERDUE: Final = "INFERs took so long again and again that they were ended, or the worker dropped for it"
FATAL_ATTEMPTS: Final = 5
"""Number of workers in a row that may be lost at a model before it is given up everywhere."""
FATAL_APART_NS: Final = 2_000_000_000
"""Losses that count are so far apart: longer than the workers of one host take to be missed one by one."""
FATAL: Final = (
    f"{FATAL_ATTEMPTS} workers in a row were lost while they prepared, loaded or ran it, which may be "
    "what ended them; unload and load it, or change its files, to have it tried again"
)


_NOT_PREPARED: Final = (State.KNOWN, State.CLOSED)
_IDLE: Final = (*_NOT_PREPARED, State.PREPARED, State.RESIDENT)


def add_model(cluster: Cluster, model: Model, former: Model | None) -> None:
    """Enter a new model whose name is free; it is absent where something has its name.

    ``former`` is what it replaces, and whose requests it counts on.
    """
    name = model.name
    settle(cluster, name)
    cluster.models[name] = model
    cluster.device_kinds.serve(model)
    if former is not None:
        model.count_on(former.counts)
    for worker in cluster.workers.values():
        if worker.kind not in model.infer_times:
            cluster.know(model, worker.kind)
        if name in worker.placements:
            model.absent |= worker.bit


def model_added(cluster: Cluster, spec: ModelSpec) -> Change:
    """Serve a model from now on; it replaces one of its name with other weights, whose pin it keeps."""
    known = cluster.models.get(spec.name)
    if known is not None and known.spec == spec:
        return NOTHING
    change = Change()
    change.model = model = cluster.new_model(spec)
    # Before the old model goes, so that what both have in common stays.
    cluster.estimates.hold(model)
    if known is not None:
        _take_off(cluster, known, change)
    add_model(cluster, model, known)
    regroup(cluster)
    return change


def model_removed(cluster: Cluster, name: str) -> Change:
    """Serve a model no more."""
    model = cluster.models.get(name)
    if model is None:
        return NOTHING
    unset(cluster, name)
    change = Change()
    _take_off(cluster, model, change)
    return change


def unset(cluster: Cluster, name: str) -> None:
    """Forget what operators set about a model."""
    cluster.pinned.pop(name, None)
    cluster.operations.pop(("model", name), None)
    cluster.operations.pop(("assignment", name), None)
    if cluster.assigned.pop(name, None) is not None:
        regroup(cluster)


def _take_off(cluster: Cluster, model: Model, change: Change) -> None:
    change.removed = model
    cease_to_serve(cluster, model)
    change.unwanted = left_behind(cluster, model)
    for placement in change.unwanted:
        leave(cluster, placement)
    cluster.estimates.release(model)


def left_behind(cluster: Cluster, model: Model) -> list[Placement]:
    """Return what is to be taken off workers of a model that is served no more."""
    found: list[Placement] = []
    for worker in cluster.workers.values():
        placement = worker.placements.get(model.name)
        if placement is None and model.prepared & worker.bit:
            placement = cluster.place(model, worker)
        if placement is not None and placement.model is model:
            found.append(placement)
    return found


def cease_to_serve(cluster: Cluster, model: Model) -> None:
    """Take a model out of those that are served."""
    settle(cluster, model.name)
    cluster.device_kinds.release(model)
    del cluster.models[model.name]
    cluster.overdue.pop(model.name, None)
    model.pinned = False


def model_restored(cluster: Cluster, worker_name: str, model_name: str) -> Change:
    """A worker failed on a model whose files have changed since: what it has of it goes."""
    placement = restorable(cluster, worker_name, model_name)
    if placement is None:
        return NOTHING
    change = Change(placement.worker)
    change.placement = placement
    change.successor = leave(cluster, placement)
    return change


def restorable(cluster: Cluster, worker_name: str, model_name: str) -> Placement | None:
    """Return a model's placement on a worker that failed on it, None if there is none."""
    worker = cluster.workers.get(worker_name)
    placement = None if worker is None else worker.placements.get(model_name)
    if placement is not None and not placement.leaving and (placement.failed or placement.failures):
        return placement
    return None


def misplaced(event: WorkerJoined) -> str | None:
    """Return what is wrong with the pages that a joining worker says are in use, None if nothing is."""
    pages = [page for resident in event.resident for page in resident.pages]
    if len(set(pages)) == len(pages) and all(0 <= page < event.pages for page in pages):
        return None
    return f"it says that its {event.pages} pages hold models at {sorted(pages)}"


def join(cluster: Cluster, event: WorkerJoined) -> Worker:
    """Enter a worker; every model is known on it but what it has prepared.

    Of that, only a part is entered now where `Cluster.entered_at_once` says so (`Cluster.joining`).
    """
    worker = cluster.new_worker(event)
    cluster.seat(worker)
    note_standing(cluster, worker)
    cluster.recount()
    worker.joining = joining = DeferredJoin(cluster, worker, event.prepared)
    cluster.joining.append(joining)
    joining.some(cluster.entered_at_once or len(event.prepared))
    return worker


def adopt(cluster: Cluster, now_ns: int, worker: Worker, resident: Resident) -> Placement:
    """Enter a model that is in a joining worker's pages; return its placement."""
    placement = find(cluster, worker, resident.model) or orphan(cluster, worker, resident.model)
    worker.pages.take(resident.model, resident.pages)
    placement.pages = resident.pages
    placement.last_used_ns = now_ns
    worker.lru[resident.model] = placement
    if placement.model.on(worker.kind).artifact != resident.artifact:
        placement.leave()
    placement.enter(State.RESIDENT)
    return placement


def worker_joined(cluster: Cluster, now_ns: int, event: WorkerJoined) -> Change:
    """Take a worker in with what its memory holds; what it says of that must not be `misplaced`."""
    worker = join(cluster, event)
    if event.again:
        _not_ended(cluster, event.worker)
    change = Change(worker)
    for resident in event.resident:
        adopt(cluster, now_ns, worker, resident)
    change.unwanted = unwelcome(cluster, worker)
    for placement in change.unwanted:
        if placement.leaving:
            leave(cluster, placement)
        else:
            give_up(placement, why_given_up(placement))
    regroup(cluster)
    return change


def to_give_up(placement: Placement, result: Result) -> bool:
    """Return whether the end of an INFER is the last reason to try the model no more on the worker."""
    base = placement.base
    idle = base.infers == 0 and base.state is State.RESIDENT and not base.leaving
    return result.status is not Status.OK and idle and _was_overdue(base.model, base.worker)


def unwelcome(cluster: Cluster, worker: Worker) -> list[Placement]:
    """Return what a worker that has just joined is to give up: what is leaving, and models whose INFERs have
    cost it its place too often."""
    for model in cluster.overdue.values():
        if _was_overdue(model, worker):
            at(cluster, model, worker)
    return [each for each in of_worker(worker) if each.leaving or _was_overdue(each.model, worker)]


def why_given_up(placement: Placement) -> str:
    """Return why a model that was overdue too often is given up on a worker."""
    return FATAL if _is_fatal(placement.model.base) else OVERDUE


def _was_overdue(model: Model, worker: Worker) -> bool:
    """Return whether the model's INFERs have taken far too long on the worker, or were fatal, too often."""
    overdue = model.overdue
    return _is_fatal(model) or (overdue is not None and overdue.get(worker.name, 0) >= OVERDUE_ATTEMPTS)


def _is_fatal(model: Model) -> bool:
    losses = model.losses
    return losses is not None and max(losses.by_action.values(), default=0) >= FATAL_ATTEMPTS


def lost_running(cluster: Cluster, now_ns: int, name: str) -> list[Placement]:
    """Note that a worker was lost, and is about to be taken out; what it was at may be what ended it.

    That is one of what EXEC, LOAD and PREPARE were at: each counts, until the same ends well somewhere.
    Workers that are lost together, as with their host, count once (`FATAL_APART_NS`).
    Returns placements on the other workers that have nothing to do for a model that is to be given up: where
    only preparing it is fatal, those that have yet to be prepared.
    """
    worker = cluster.workers.get(name)
    if worker is None:
        return []
    found: list[Placement] = []
    for action in at_work(now_ns, worker):
        model = _model_of(worker, action)
        if model is None or not _ended_by(cluster, now_ns, model, action) or not cluster.serves(model):
            continue
        others = [at(cluster, model, other) for other in hosts(cluster, model) if other is not worker]
        idle = _NOT_PREPARED if isinstance(action, Prepare | Open) else _IDLE
        found += [each for each in others if not (each.infers or each.leaving) and each.state in idle]
    return found


def _model_of(worker: Worker, action: Infer | Open | Load | Prepare) -> Model | None:
    """Return the model of a worker's action; None to a reader that has missed where it came from."""
    placement = worker.placements.get(action.model.name if isinstance(action, Prepare) else action.model)
    return None if placement is None else placement.model.base


def _ended_by(cluster: Cluster, now_ns: int, model: Model, action: Infer | Open | Load | Prepare) -> bool:
    """Count a worker that was lost at an action of a model; return whether that makes the model fatal."""
    losses = model.losses
    if losses is None:
        losses = model.losses = Losses({}, now_ns)
    elif now_ns - losses.last_ns < FATAL_APART_NS:
        return False
    kind = kind_of(action)
    losses.by_action[kind] = losses.by_action.get(kind, 0) + 1
    losses.last_ns, losses.worker, losses.action = now_ns, action.worker, kind
    if cluster.serves(model):
        cluster.overdue[model.name] = model
    return _is_fatal(model)


def _not_ended(cluster: Cluster, name: str) -> None:
    """Take back the last loss of a worker that was merely silent: what it was at has not ended it."""
    for model in cluster.overdue.values():
        losses = model.losses
        if losses is not None and losses.worker == name:
            losses.worker = ""
            if losses.by_action.get(losses.action):
                losses.by_action[losses.action] -= 1


def lose(cluster: Cluster, name: str) -> Worker | None:
    """Take a worker out with its placements, and return it; `execution.orphans` has its requests."""
    worker = cluster.unseat(name)
    if worker is None:
        return None
    _forget_retired(cluster, name)
    if worker.joining is not None:
        worker.joining.end()
    # Who plans with it yet, over several turns, finds that nothing may begin there.
    worker.stopping = True
    cluster.recount()
    for placement in worker.placements.values():
        placement.lose()
    if worker.kind not in cluster.of_kind:
        # The models that are served learn of it by `DeviceKinds`.
        for placement in worker.placements.values():
            if placement.model.device_kinds is None:
                forget_kind(placement.model, worker.kind)
    return worker


def _forget_retired(cluster: Cluster, name: str) -> None:
    """Forget that a worker was to leave once it has left and its provider is not to run it.

    One that was to go to another controller, and left before it was sent there, stays if it comes back.
    """
    retiring = cluster.retiring.get(name)
    kind = None if retiring is None else cluster.kinds.get(retiring[0])
    moves = cluster.moving.pop(name, None) is not None
    if retiring is not None and (moves or kind is None or name not in kind.workers):
        del cluster.retiring[name]


def stop(cluster: Cluster, worker: Worker) -> None:
    """Note that a worker begins nothing more: its models are to be taken off it."""
    worker.stopping = True
    cluster.recount()
    worker.prepare_queue.clear()


def operator_asked(cluster: Cluster, now_ns: int, event: OperatorAsked) -> Change:
    """Enter what an operator set instead of what was set about the same before.

    What concerns something that is not there, or may not be set, changes nothing.
    """
    command = event.command
    about = subject(command)
    if about is None or not _may_set(cluster, command):
        return NOTHING
    cluster.operations.pop(about, None)
    cluster.operations[about] = now_ns, event
    change = Change()
    change.taken = True
    match command:
        case SetGraph(name=name):
            cluster.graph_shares.pop(name, None)
        case DrainWorker(worker=name):
            if name not in cluster.drained:
                change.worker = cluster.workers[name]
            cluster.drained[name] = None
            set_draining(cluster, name)
            regroup(cluster)
        case ResumeWorker(worker=name):
            change.worker = cluster.workers.get(name)
            del cluster.drained[name]
            set_draining(cluster, name)
            regroup(cluster)
        case PinModel(model=name):
            cluster.pinned[name] = None
        case UnpinModel(model=name):
            del cluster.pinned[name]
            cluster.models[name].pinned = False
        case AssignModel():
            wish(cluster, command)
    return change


def _may_set(cluster: Cluster, command: OperatorCommand) -> bool:
    match command:
        case DrainWorker(worker=name):
            return name in cluster.workers
        case ResumeWorker(worker=name):
            return name in cluster.drained
        case PinModel(model=name):
            return name in cluster.models and unpinnable(cluster, cluster.models[name]) is None
        case UnpinModel(model=name):
            return name in cluster.pinned
        case AssignModel():
            return unassignable(cluster, command) is None
        case ScaleWorkers():
            return unscalable(cluster, command) is None
        case _:
            return True


def note_standing(cluster: Cluster, worker: Worker) -> None:
    """Note on a worker whether it is to leave, and whether nothing more is to be sent to it."""
    worker.draining = cluster.is_drained(worker.name)
    worker.retiring = worker.name in cluster.retiring


def set_draining(cluster: Cluster, name: str) -> None:
    """Note whether nothing more is to be sent to a worker, and whether it is to leave, if it is connected."""
    worker = cluster.workers.get(name)
    if worker is not None:
        note_standing(cluster, worker)
        cluster.recount()
        for placement in worker.placements.values():
            placement.consider()
