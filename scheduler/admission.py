"""Why a request of a model can't be served at all (design, section 5)."""

from __future__ import annotations

from mainspring.cluster.placements import Model
from mainspring.messages.codes import Reason
from mainspring.scheduler.state import SchedulerState


def impossible(state: SchedulerState, model: Model) -> tuple[Reason, str]:
    """Say why no worker can run a model now."""
    if not state.cluster.workers:
        return Reason.NO_WORKER, "no worker is connected; if one starts or comes back, send the request again"
    largest = max(worker.pages.size for worker in state.cluster.workers.values())
    if model.spec.pages > largest:
        return (
            Reason.NO_WORKER,
            f"model {model.name!r} needs {model.spec.pages} pages and the largest worker has {largest}",
        )
    failed = [p for p in model.placements.values() if p.failed]
    if failed and all(placement.hopeless for placement in model.placements.values()):
        return (
            Reason.NO_WORKER,
            f"no worker could run model {model.name!r}; {failed[0].worker.name} says: {failed[0].detail}",
        )
    able = [placement.worker for placement in model.placements.values() if not placement.hopeless]
    if able and all(worker.draining for worker in able):
        drained = ", ".join(worker.name for worker in able)
        return Reason.NO_WORKER, f"an operator drained every worker that could run {model.name!r} ({drained})"
    return Reason.MODEL_NOT_READY, f"model {model.name!r} is still being prepared"
