"""The state for a person."""

from __future__ import annotations

from mainspring.cluster.deferred_join import settle
from mainspring.cluster.models import Model
from mainspring.cluster.placements import PREPARED_STATES, State
from mainspring.cluster.provision import Kind
from mainspring.cluster.residency import hosts, is_barred, is_hopeless
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.codes import Reason
from mainspring.messages.operating import ScaleWorkers
from mainspring.messages.scaling import KindStatus
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus


def cluster_status(cluster: Cluster, policy: str, max_queue_sizes: dict[str, int]) -> ClusterStatus:
    """Return every worker and model as it is now; ``policy`` is the name of the scheduler's.

    ``max_queue_sizes``: the configured bounds of single models, by what clients call them.
    """
    return ClusterStatus(
        policy=policy,
        workers=tuple(_worker(worker, cluster.moving.get(name)) for name, worker in cluster.workers.items()),
        models=tuple(_model(cluster, model, max_queue_sizes) for model in cluster.models.values()),
        requests_queued=cluster.queued,
        dropped_messages={},
        kinds=tuple([kind_status(cluster, kind) for kind in cluster.kinds.values()]),
    )


def kind_status(cluster: Cluster, kind: Kind) -> KindStatus:
    """Return how many workers of a kind there are, and are to be."""
    asked = cluster.operations.get(("kind", kind.name))
    command = None if asked is None else asked[1].command
    staying = [name for name in kind.workers if name not in cluster.retiring]
    return KindStatus(
        kind=kind.name,
        provider=kind.provider,
        most=kind.offer.most,
        wanted=command.count if isinstance(command, ScaleWorkers) else len(staying),
        running=len([name for name in staying if name in cluster.workers]),
        leaving=tuple([name for name, (of_kind, _) in cluster.retiring.items() if of_kind == kind.name]),
        fault=kind.offer.fault if kind.provider else "nothing is connected that starts and stops them",
        price=kind.offer.price,
        in_time=kind.in_time,
        late=kind.late,
    )


def _worker(worker: Worker, to: str | None) -> WorkerStatus:
    return WorkerStatus(
        worker=worker.name,
        device_kind=worker.device_kind,
        pages=worker.pages.size,
        pages_free=worker.pages.free,
        prepared=worker.prepared,
        resident=len(worker.lru),
        outstanding=len(worker.exec) + len(worker.load) + len(worker.others),
        clock_offset_ns=0,
        targets=worker.targets,
        notes=_notes(worker, to),
    )


def leaving_note(worker: Worker, to: str | None = None) -> str:
    """Return what a worker does that is to leave, or to go ``to`` another controller."""
    doing = "finishes what it was told to do" if worker.draining else "hands over what only it holds"
    if to:
        return f"it {doing} and goes to the controller at {to} then"
    return f"fewer workers are wanted: it {doing} and is stopped then"


def _notes(worker: Worker, to: str | None) -> tuple[str, ...]:
    if worker.retiring:
        return (leaving_note(worker, to),)
    return ("an operator drained it: it gets no work until it is resumed",) if worker.draining else ()


def _model(cluster: Cluster, model: Model, max_queue_sizes: dict[str, int]) -> ModelStatus:
    found = model.where
    if found is None or found[0] != cluster.changes:
        found = model.where = where(cluster, model)
    _, prepared_on, resident_on, failed_on = found
    counts, called = model.counts, model.spec.public_name
    return ModelStatus(
        name=model.name,
        pages=model.pages,
        prepared_on=prepared_on,
        resident_on=resident_on,
        queued=model.waiting,
        failed_on=failed_on,
        arrived=counts.arrived,
        finished=counts.finished,
        late=counts.late,
        rejected=counts.rejected,
        slo_ns=counts.slo_ns,
        erratic=is_erratic(model),
        verified=model.spec.verified,
        outlier=counts.outlier,
        max_queue_size=cluster.max_queue_size(called) or max_queue_sizes.get(called),
    )


def is_erratic(model: Model) -> bool:
    """Return whether a model's durations are far from even on any kind of device, in any of its buckets."""
    return any(times.spreads.erratic for each in model.by_bucket for times in each.infer_times.values())


def impossible(cluster: Cluster, model: Model) -> tuple[Reason, str]:
    """Say why no worker can run a model now."""
    if not cluster.workers:
        return Reason.NO_WORKER, "no worker is connected; if one starts or comes back, send the request again"
    if all(model.pages_on(worker) > worker.pages.size for worker in cluster.workers.values()):
        largest = max(cluster.workers.values(), key=lambda worker: worker.pages.size)
        return (
            Reason.NO_WORKER,
            f"model {model.name!r} needs {model.pages_on(largest)} pages and the largest worker has "
            f"{largest.pages.size}",
        )
    if model.assignment is None and len(cluster.owners) == len(cluster.workers):
        owners = ", ".join(sorted({*cluster.owners.values()})[:8])
        return Reason.NO_WORKER, f"every worker is another model's own: {owners}"
    if model.assignment is not None and model.name not in cluster.owners.values():
        return Reason.NO_WORKER, f"no worker is free to run model {model.name!r} alone, as it was assigned"
    failed = [p for p in model.placements.values() if p.failed]
    if failed and is_hopeless(cluster, model):
        first = min(failed, key=lambda placement: placement.worker.number)
        detail = f"no worker could run model {model.name!r}; {first.worker.name} says: {first.base.detail}"
        return Reason.NO_WORKER, detail
    able = [worker for worker in hosts(cluster, model) if not is_barred(model, worker)]
    if able and all(worker.draining for worker in able):
        drained = ", ".join(worker.name for worker in able)
        return Reason.NO_WORKER, f"an operator drained every worker that could run {model.name!r} ({drained})"
    return Reason.MODEL_NOT_READY, f"model {model.name!r} is still being prepared"


def where(cluster: Cluster, model: Model) -> tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return `Cluster.changes`, and the workers that have a model prepared and resident, and those that
    failed, each with why."""
    settle(cluster, model.name)
    prepared: list[str] = []
    resident: list[str] = []
    failed: list[str] = []
    for worker in hosts(cluster, model):
        placement = model.placements.get(worker.name)
        if placement is None:
            if model.prepared & worker.bit:
                prepared.append(worker.name)
            continue
        if placement.state in PREPARED_STATES:
            prepared.append(worker.name)
        if placement.state is State.RESIDENT:
            resident.append(worker.name)
        if placement.failed:
            failed.append(f"{worker.name}: {placement.detail}")
    return cluster.changes, tuple(prepared), tuple(resident), tuple(failed)
