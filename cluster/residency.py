"""Models on workers, and what PREPARE, RELEASE, LOAD and UNLOAD and their results change there.

A pair of model and worker has no `Placement` while a bit says all that there is to say of it: whether the
model is prepared there (`Model.prepared`). It gets one when anything changes, and loses it when it is plain
again (`tidy`). Where a pair was passed by on its way is decided by nobody: whether it has an object never
changes a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mainspring.cluster.deferred_join import settle
from mainspring.cluster.models import Model
from mainspring.cluster.placements import PREPARED_STATES, Placement, State
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Load, Open, Prepare, Release, Result, Unload, kind_of
from mainspring.messages.codes import Status


def at(cluster: Cluster, model: Model, worker: Worker, keep: bool = True) -> Placement:
    """Return the placement of a model that is not absent on a worker.

    With ``keep`` what changes it is kept; without, it is to be read only, and at once.
    """
    if worker.joining is not None:
        worker.joining.enter(model.base.name)
    placement = model.placements.get(worker.name)
    if placement is None:
        placement = cluster.place(model, worker) if keep else cluster.plain(model, worker)
    return placement


def find(cluster: Cluster, worker: Worker, name: str, keep: bool = True) -> Placement | None:
    """Return what a worker has by a model's name, as `at`; None if that is nothing."""
    if worker.joining is not None:
        worker.joining.enter(name)
    placement = worker.placements.get(name)
    if placement is not None:
        return placement
    model = cluster.models.get(name)
    return None if model is None else at(cluster, model, worker, keep)


def is_known(model: Model, worker: Worker) -> bool:
    """Return whether a PREPARE of a model that is not absent has yet to be sent to a worker."""
    if worker.joining is not None:
        worker.joining.enter(model.name)
    placement = model.placements.get(worker.name)
    if placement is None:
        return not (model.prepared & worker.bit or worker.stopping)
    return placement.state is State.KNOWN and not placement.leaving


def is_loadable(model: Model, worker: Worker) -> bool:
    """Return whether a LOAD of a model may be sent to a worker."""
    if worker.joining is not None:
        worker.joining.enter(model.base.name)
    if not model.base.prepared & worker.bit or not model.may_run_on(worker):
        return False
    placement = model.placements.get(worker.name)
    if placement is None:
        return not (worker.draining or worker.stopping or worker.retiring)
    return placement.loadable


def is_barred(model: Model, worker: Worker) -> bool:
    """Return whether a model that is not absent will never run on a worker as it is."""
    if model.pages_on(worker) > worker.pages.size or not model.may_run_on(worker):
        return True
    placement = model.placements.get(worker.name)
    return placement is not None and placement.failed


def is_hopeless(cluster: Cluster, model: Model) -> bool:
    """Return whether no worker will ever run a model; one that just replaced another is nowhere yet."""
    found = False
    for worker in cluster.workers.values():
        if not model.absent & worker.bit:
            if not is_barred(model, worker):
                return False
            found = True
    return found


def is_given_up(cluster: Cluster, model: Model) -> bool:
    """Return whether no worker will run a model unless something changes: none can, or those are drained."""
    base = model.base
    for worker in cluster.workers.values():
        if not base.absent & worker.bit and not worker.draining and not is_barred(model, worker):
            return False
    return True


def is_prepared_anywhere(cluster: Cluster, model: Model) -> bool:
    """Return whether any worker has a model prepared."""
    settle(cluster, model.name)
    if model.prepared & cluster.worker_bits.taken:
        return True
    return any(placement.state in PREPARED_STATES for placement in model.placements.values())


def is_everywhere(cluster: Cluster, model: Model) -> bool:
    """Return whether a model is resident or loading wherever it is not absent."""
    absent = model.base.absent
    copies = len(model.usable)
    if absent:
        copies += (absent & cluster.worker_bits.taken).bit_count()
    if model.base.assignment is not None:
        return copies >= sum([owner == model.base.name for owner in cluster.owners.values()])
    return copies >= len(cluster.workers) - len(cluster.owners)


def hosts(cluster: Cluster, model: Model) -> list[Worker]:
    """Return the workers where a model is not absent, in the order in which they joined."""
    absent = model.base.absent
    return [worker for worker in cluster.workers.values() if not absent & worker.bit]


def able(model: Model, room: Iterable[Worker]) -> list[Worker]:
    """Return those of workers with room that may be sent a LOAD of a model, in no order."""
    return [worker for worker in room if is_loadable(model, worker)]


def of_worker(worker: Worker) -> list[Placement]:
    """Return the placements of a worker that have an object, by when their models came; strangers last."""
    return sorted(worker.placements.values(), key=_order)


def _order(placement: Placement) -> tuple[bool, int]:
    number = placement.model.number
    return not number, number


def tidy(cluster: Cluster) -> None:
    """Drop the objects that have become plain; nobody may be about to use one that it holds."""
    fleeting = cluster.fleeting
    for placement in fleeting:
        name, worker = placement.model.name, placement.worker
        if worker.placements.get(name) is not placement or not placement.plain:
            continue
        if cluster.models.get(name) is placement.model:
            del worker.placements[name]
            for each in (placement, *placement.buckets):
                each.model.placements.pop(worker.name, None)
    fleeting.clear()


LOAD_ATTEMPTS: Final = 3
"""LOADs in a row that a worker's engine may fail before the model is given up on that worker."""


def load_sent(cluster: Cluster, now_ns: int, action: Load) -> None:
    """Enter a LOAD: the model has the pages from now on."""
    worker = cluster.workers[action.worker]
    placement = _found(cluster, worker, action.model)
    worker.pages.take(action.model, action.pages)
    placement.pages = action.pages
    placement.last_used_ns = now_ns
    placement.enter(State.LOADING, worker.load.add(action))


def load_ended(cluster: Cluster, now_ns: int, worker: Worker, action: Load, result: Result) -> None:
    """Enter a LOAD's result: the model is resident, or its pages are free again."""
    placement = worker.placements[action.model]
    if result.status is Status.OK:
        placement.enter(State.RESIDENT)
        placement.failures = 0
        _ended_well(placement.model, action)
        worker.lru[action.model] = placement
        duration_ns = result.end_ns - result.begin_ns
        expected_ns = placement.load_time.ns
        if placement.load_time.add(now_ns, duration_ns):
            counts = placement.model.counts
            counts.stood_out(now_ns, worker.name, action.action_id, duration_ns, expected_ns)
        else:
            cluster.estimates.loaded(worker.kind, placement.model.on(worker.kind).weights_bytes, duration_ns)
    else:
        placement.failures += result.status is Status.ENGINE_ERROR
        placement.detail = result.detail
        vacate(placement, State.BROKEN if placement.failures >= LOAD_ATTEMPTS else State.PREPARED)


def unload_sent(cluster: Cluster, now_ns: int, action: Unload) -> None:
    """Enter an UNLOAD: the model's pages are free for the very next LOAD."""
    worker = cluster.workers[action.worker]
    placement = worker.placements[action.model]
    vacate(placement, State.BROKEN if placement.given_up else State.PREPARED)
    worker.others[action.action_id] = (action, now_ns)


def prepare_sent(cluster: Cluster, now_ns: int, action: Prepare) -> None:
    """Enter a PREPARE."""
    worker = cluster.workers[action.worker]
    _found(cluster, worker, action.model.name).enter(State.PREPARING)
    worker.prepares += 1
    worker.others[action.action_id] = (action, now_ns)


def open_sent(cluster: Cluster, action: Open) -> None:
    """Enter an OPEN: EXEC has one action more, and no LOAD is expected to begin before its end."""
    worker = cluster.workers[action.worker]
    worker.load.reserve(worker.exec.add(action).end_ns)
    _found(cluster, worker, action.model).enter(State.OPENING)


def open_ended(cluster: Cluster, now_ns: int, worker: Worker, action: Open, result: Result) -> None:
    """Enter an OPEN's result: the model can be loaded, or waits for another one, or is given up."""
    worker.load.release(result.end_ns)
    placement = worker.placements[action.model]
    placement.detail = result.detail
    if result.status is Status.OK:
        duration_ns = result.end_ns - result.begin_ns
        cluster.estimates.opened(now_ns, worker.kind, placement.times, duration_ns)
        placement.enter(State.PREPARED)
        _ended_well(placement.model, action)
    elif result.status is Status.TOO_LATE or result.status is Status.STOPPING:
        placement.enter(State.CLOSED)
    else:
        placement.enter(State.FAILED)


def release_sent(cluster: Cluster, now_ns: int, action: Release) -> None:
    """Enter a RELEASE."""
    worker = cluster.workers[action.worker]
    _found(cluster, worker, action.model).enter(State.RELEASING)
    worker.others[action.action_id] = (action, now_ns)


def other_ended(
    cluster: Cluster, worker: Worker, action: Unload | Prepare | Release, result: Result
) -> Model | None:
    """Enter the result of an action without a window.

    Returns what replaces a model that was released, if something does. A reader that has missed entries may
    know nothing any more of what the action was about.
    """
    ok = result.status is Status.OK
    if worker.stopping and not ok:
        return None
    name = action.model.name if isinstance(action, Prepare) else action.model
    placement = worker.placements.get(name)
    if isinstance(action, Prepare):
        worker.prepares -= 1
    if placement is None:
        return None
    if isinstance(action, Prepare):
        state = State.CLOSED if result.status is Status.NOT_OPEN else State.FAILED
        placement.enter(State.PREPARED if ok else state)
        if ok or state is State.CLOSED:
            _ended_well(placement.model, action)
        placement.detail = result.detail
    elif isinstance(action, Release) and ok:
        return forget(cluster, placement)
    return None


def _ended_well(model: Model, action: Load | Open | Prepare) -> None:
    """Note that an action did not end its worker (`membership.lost_running`)."""
    losses = model.base.losses
    if losses is not None:
        losses.by_action.pop(kind_of(action), None)


def leave(cluster: Cluster, placement: Placement) -> Model | None:
    """Note that a model is to be taken off a worker; one that is not prepared there is off at once.

    Returns what replaces one that is off, if something does.
    """
    placement.leave()
    if not placement.worker.stopping and placement.state in (State.KNOWN, State.FAILED):
        return forget(cluster, placement)
    return None


def give_up(placement: Placement, detail: str) -> None:
    """Try a model no more on a worker; if it is resident there, its UNLOAD follows."""
    placement.detail = detail
    if placement.state is State.RESIDENT:
        placement.given_up = True
    else:
        placement.enter(State.BROKEN if placement.state is State.PREPARED else State.FAILED)


def forget(cluster: Cluster, placement: Placement) -> Model | None:
    """Remove a placement; return the model that was added under its name and is known there now, if any."""
    worker, name = placement.worker, placement.model.name
    del worker.placements[name]
    worker.prepare_queue.pop(name, None)
    for each in (placement, *placement.buckets):
        each.model.placements.pop(worker.name, None)
    placement.model.where = None
    successor = cluster.models.get(name)
    if successor is None or worker.name not in cluster.workers:
        return None
    successor.absent &= ~worker.bit
    successor.where = None
    return successor


def _found(cluster: Cluster, worker: Worker, name: str) -> Placement:
    placement = find(cluster, worker, name)
    if placement is None:
        raise KeyError(f"{worker.name} has nothing by the name of {name!r}")
    return placement


def vacate(placement: Placement, state: State) -> None:
    """Free a model's pages; ``state`` is its next."""
    give_pages_back(placement)
    placement.enter(state)


def give_pages_back(placement: Placement) -> None:
    """Free a model's pages, and leave its state to the caller."""
    worker, name = placement.worker, placement.model.name
    worker.pages.give_back(name, placement.pages)
    worker.lru.pop(name, None)
    placement.pages = ()
    placement.last_used_ns = 0
