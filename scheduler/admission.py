"""Rejection on arrival: the earliest finish that any plan could reach (design, section 5).

The plan that is tried puts the new request before everything that is queued, behind only what workers
were already told. A request that even this can't save is refused at once, and told what was possible.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.placements import Model, State
from mainspring.messages.codes import Reason
from mainspring.scheduler.state import SchedulerState

_PREPARED: Final = State.PREPARED


def earliest_finish_ns(
    state: SchedulerState, now_ns: int, model: Model, rows: int, due_ns: int | None
) -> int | None:
    """Return the earliest predicted end of a new request's EXEC; None if no worker can run it.

    The search ends at the first plan that is in time.
    """
    soonest_ns = now_ns + state.ns.dispatch_delay
    index = model.index_of[rows]
    best: int | None = None
    for placement in model.usable.values():
        timeline = placement.worker.exec
        begin_ns = timeline.available_ns(now_ns, soonest_ns)
        inputs_at_ns = timeline.inputs_at_ns(soonest_ns, placement.times.transfer_ns[index])
        begin_ns = max(begin_ns, inputs_at_ns)
        if placement.load_slot is not None:
            begin_ns = max(begin_ns, placement.ready_ns(now_ns))
        finish_ns = begin_ns + placement.times.ns[index]
        if best is None or finish_ns < best:
            best = finish_ns
            if due_ns is not None and finish_ns <= due_ns:
                return best
    if best is None or (due_ns is not None and best > due_ns):
        return _after_load(now_ns, soonest_ns, model, index, due_ns, best)
    return best


def _after_load(
    now_ns: int, soonest_ns: int, model: Model, index: int, due_ns: int | None, best: int | None
) -> int | None:
    """Return the earliest finish when some worker loads the model first, or ``best`` if that is earlier."""
    pages = model.pages
    for placement in model.placements.values():
        worker = placement.worker
        if placement.state is not _PREPARED or placement.leaving or pages > worker.pages.size:
            continue
        if worker.draining:
            continue
        loaded_ns = worker.load.available_ns(now_ns, soonest_ns) + placement.load_time.ns
        inputs_at_ns = worker.exec.inputs_at_ns(soonest_ns, placement.times.transfer_ns[index])
        begin_ns = max(loaded_ns, inputs_at_ns, worker.exec.available_ns(now_ns, soonest_ns))
        finish_ns = begin_ns + placement.times.ns[index]
        if best is None or finish_ns < best:
            best = finish_ns
            if due_ns is not None and finish_ns <= due_ns:
                break
    return best


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
