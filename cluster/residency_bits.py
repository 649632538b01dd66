"""A model on a worker, for all pairs of the two: those that have a `Placement`, and the many that have not.

A pair has no object while a bit says all that there is to say of it: whether the model is prepared there
(`Model.prepared`). It gets one when anything changes, and loses it when it is plain again (`tidy`). Where a
pair was passed by on its way is decided by nobody: whether it has an object never changes a decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.cluster.deferred_join import settle
from mainspring.cluster.models import Model
from mainspring.cluster.placements import PREPARED_STATES, Placement, State
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker


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
    if not model.base.prepared & worker.bit:
        return False
    placement = model.placements.get(worker.name)
    if placement is None:
        return not (worker.draining or worker.stopping or worker.retiring)
    return placement.loadable


def is_barred(model: Model, worker: Worker) -> bool:
    """Return whether a model that is not absent will never run on a worker as it is."""
    if model.pages_on(worker) > worker.pages.size:
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
    return copies >= len(cluster.workers)


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
