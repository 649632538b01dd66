"""Workers that are one model's own: which they are, as operators wish and workers come and go.

A worker that a model owns runs nothing else, and a model with such a wish runs on no other. Workers keep
their owner for as long as the wish lasts; of those that nobody owns, a model gets those first that hold it.
"""

from __future__ import annotations

from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.operating import AssignModel


def wish(cluster: Cluster, command: AssignModel) -> None:
    """Enter an operator's wish."""
    if command.workers:
        cluster.assigned[command.model] = command
    else:
        cluster.assigned.pop(command.model, None)
    regroup(cluster)


def regroup(cluster: Cluster) -> None:
    """Fit the owners to the wishes: a wish, a model, or what a worker may do has changed."""
    if not cluster.assigned and not cluster.owners:
        return
    before = {name: worker.owner for name, worker in cluster.workers.items()}
    for model in cluster.models.values():
        command = cluster.assigned.get(model.name)
        if model.assignment is not command:
            model.assignment = command
            for placement in model.placements.values():
                placement.consider()
    wishes = [each for each in cluster.assigned.values() if each.model in cluster.models]
    _release(cluster, wishes)
    for each in wishes:
        _take(cluster, each)
    cluster.owners = {name: worker.owner for name, worker in cluster.workers.items() if worker.owner}
    for name, worker in cluster.workers.items():
        if worker.owner != before[name]:
            _changed(cluster, worker)


def _release(cluster: Cluster, wishes: list[AssignModel]) -> None:
    """Take workers from models that have too many, or that no longer want any of their own."""
    left = {each.model: each.workers for each in wishes}
    kinds = {each.model: each.kind for each in wishes}
    for worker in cluster.workers.values():
        if worker.owner and (worker.owner not in left or kinds[worker.owner] not in ("", worker.device_kind)):
            worker.owner = ""
        if worker.owner and _stays(worker):
            left[worker.owner] -= 1
            if left[worker.owner] < 0:
                worker.owner = ""


def _take(cluster: Cluster, command: AssignModel) -> None:
    """Give a model workers that nobody owns, as far as there are any."""
    name, workers = command.model, cluster.workers.values()
    missing = command.workers - len([each for each in workers if each.owner == name and _stays(each)])
    free = [
        each for each in workers if not each.owner and _stays(each) and command.kind in ("", each.device_kind)
    ]
    free.sort(key=lambda each: (name not in each.lru, each.number))
    for worker in free[: max(0, missing)]:
        worker.owner = name


def _stays(worker: Worker) -> bool:
    """Return whether a worker counts: one that is drained or is to leave keeps its owner, and others come."""
    return not (worker.draining or worker.retiring or worker.stopping)


def _changed(cluster: Cluster, worker: Worker) -> None:
    for placement in worker.placements.values():
        placement.consider()
    cluster.regrouped[worker.name] = worker


def enter_owners(cluster: Cluster, wishes: dict[str, AssignModel], owners: dict[str, str]) -> None:
    """Have just these wishes and owners, as a snapshot says."""
    cluster.assigned, cluster.owners = wishes, {}
    for model in cluster.models.values():
        model.assignment = wishes.get(model.name)
    for worker in cluster.workers.values():
        worker.owner = owners.get(worker.name, "")
        if worker.owner:
            cluster.owners[worker.name] = worker.owner
        for placement in worker.placements.values():
            placement.consider()
