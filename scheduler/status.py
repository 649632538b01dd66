"""The scheduler's state for a person."""

from __future__ import annotations

from mainspring.messages.peers import ClusterStatus, ModelStatus, WorkerStatus
from mainspring.scheduler.books import Books
from mainspring.scheduler.mirror import Model, State, Worker

READY = (State.PREPARED, State.LOADING, State.RESIDENT)


def cluster_status(books: Books) -> ClusterStatus:
    """Return every worker and model as it is now."""
    return ClusterStatus(
        policy=books.config.policy,
        workers=tuple(_worker(worker) for worker in books.cluster.workers.values()),
        models=tuple(_model(model) for model in books.cluster.models.values()),
        requests_queued=books.queued,
        dropped_messages={},
    )


def _worker(worker: Worker) -> WorkerStatus:
    return WorkerStatus(
        worker=worker.name,
        device_kind=worker.device_kind,
        pages=worker.pages.size,
        pages_free=worker.pages.free,
        prepared=sum(1 for placement in worker.placements.values() if placement.state in READY),
        resident=len(worker.lru),
        outstanding=len(worker.exec) + len(worker.load) + len(worker.others),
        clock_offset_ns=0,
        notes=(),
    )


def _model(model: Model) -> ModelStatus:
    placements = model.placements.values()
    return ModelStatus(
        name=model.name,
        pages=model.spec.pages,
        prepared_on=tuple(p.worker.name for p in placements if p.state in READY),
        resident_on=tuple(p.worker.name for p in placements if p.state is State.RESIDENT),
        queued=model.waiting,
        failed_on=tuple(f"{p.worker.name}: {p.detail}" for p in placements if p.failed),
    )
