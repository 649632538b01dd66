"""The times by which workers could run a request of a model, and what would run before it.

A plan is an INFER of the request alone that is sent now, behind only what the worker was already told to do,
and after a LOAD if the model needs one.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.deferred_join import settle
from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import at
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import (
    Ahead,
    Candidate,
    Evidence,
    PlanEvidence,
    Readiness,
    RejectEvidence,
)

CANDIDATES: Final = 8
"""Workers beside the best that a rejection's evidence names at most."""
PLANNED_FOR: Final = 32
"""Workers that are planned for in any case; with more, only those that may be in time."""
DETAIL_CHARACTERS: Final = 200
"""Most characters of a failure's detail in a rejection's evidence."""
_EVIDENCE: Final = Evidence
_PREPARED: Final = State.PREPARED
_RESIDENT: Final = State.RESIDENT
_READY: Final = Readiness.RESIDENT
_READY_TO_LOAD: Final = Readiness.PREPARED


class Plan:
    """The times at which one worker could run a batch of a model."""

    __slots__ = (
        "begin_ns",
        "duration_ns",
        "exec_free_ns",
        "finish_ns",
        "inputs_ns",
        "load_ns",
        "placement",
        "weights_ns",
    )

    def __init__(self, now_ns: int, soonest_ns: int, placement: Placement, index: int) -> None:
        """Plan a batch of the size of an index; ``soonest_ns`` is when an action sent now could begin.

        The placement is resident, loading or prepared; the fields are those of `PlanEvidence`.
        """
        worker, times = placement.worker, placement.times
        self.placement = placement
        self.exec_free_ns = begin_ns = worker.exec.available_ns(now_ns, soonest_ns)
        self.inputs_ns = inputs_ns = worker.exec.inputs_at_ns(soonest_ns, times.transfer_ns[index])
        begin_ns = max(begin_ns, inputs_ns)
        weights_ns = load_ns = 0
        if placement.load_slot is not None:
            weights_ns = placement.ready_ns(now_ns)
        elif placement.state is _PREPARED:
            load_ns = placement.load_time.ns
            weights_ns = worker.load.available_ns(now_ns, soonest_ns) + load_ns
        begin_ns = max(begin_ns, weights_ns)
        self.weights_ns = weights_ns
        self.load_ns = load_ns
        self.begin_ns = begin_ns
        self.duration_ns = duration_ns = times.ns[index]
        self.finish_ns = begin_ns + duration_ns

    def evidence(self) -> Evidence:
        """Return what the begin was computed from, of a model that is resident or loading."""
        placement, exec_ = self.placement, self.placement.worker.exec
        slot = placement.load_slot
        return _EVIDENCE(
            self.exec_free_ns,
            self.inputs_ns,
            self.weights_ns,
            0 if slot is None else slot.action.action_id,
            exec_.last_id,
            len(exec_),
        )

    def whole_evidence(self) -> PlanEvidence:
        """Return the whole plan."""
        worker, slot = self.placement.worker, self.placement.load_slot
        loads_first = slot is None and self.weights_ns > 0
        return PlanEvidence(
            self.exec_free_ns,
            self.inputs_ns,
            self.weights_ns,
            0 if slot is None else slot.action.action_id,
            worker.exec.last_id,
            len(worker.exec),
            worker.name,
            self.begin_ns,
            self.duration_ns,
            self.load_ns,
            worker.load.last_id if loads_first else 0,
            len(worker.load) if loads_first else 0,
        )


def plans(cluster: Cluster, now_ns: int, model: Model, rows: int, due_ns: int | None) -> list[Plan]:
    """Return the plans of workers for a request of ``rows``, those of workers that hold the model first.

    The search ends with the first plan that ends by ``due_ns``; 0 has all tried. A LOAD is planned only if no
    worker holds the model, or none that does ends by then. Of many workers (`PLANNED_FOR`) only those are
    planned for after the first that may end by then.
    """
    soonest_ns, index = now_ns + cluster.dispatch_delay_ns, model.index_of[rows]
    found: list[Plan] = []
    for placement in model.usable.values():
        if len(found) >= PLANNED_FOR and _is_late(placement.worker, placement.times, index, due_ns, 0):
            continue
        plan = Plan(now_ns, soonest_ns, placement, index)
        found.append(plan)
        if due_ns is not None and plan.finish_ns <= due_ns:
            return found
    if found and due_ns is None:
        return found
    if cluster.joining:
        settle(cluster, model.base.name)
    prepared = model.base.prepared
    for worker in cluster.workers.values() if prepared else ():
        if not prepared & worker.bit or worker.draining or worker.retiring:
            continue
        if not model.may_run_on(worker):
            continue
        if model.pages_on(worker) > worker.pages.size:
            continue
        kind = worker.kind
        if len(found) >= PLANNED_FOR and kind in model.infer_times:
            load_ns = model.load_times[kind].ns
            if _is_late(worker, model.infer_times[kind], index, due_ns, load_ns):
                continue
        placement = at(cluster, model, worker, keep=False)
        if placement.leaving:
            continue
        plan = Plan(now_ns, soonest_ns, placement, index)
        found.append(plan)
        if due_ns is not None and plan.finish_ns <= due_ns:
            break
    return found


def soonest_in_time_ns(cluster: Cluster, now_ns: int, model: Model, rows: int, due_ns: int) -> int:
    """Return when the first of `plans` ends that ends by ``due_ns``, which is the soonest of those compared;
    -1 if none of a worker that holds the model does."""
    soonest_ns, index, looked_at = now_ns + cluster.dispatch_delay_ns, model.index_of[rows], 0
    for placement in model.usable.values():
        times, exec_ = placement.times, placement.worker.exec
        if looked_at >= PLANNED_FOR and _is_late(placement.worker, times, index, due_ns, 0):
            continue
        inputs_ns = exec_.inputs_at_ns(soonest_ns, times.transfer_ns[index])
        begin_ns = max(exec_.available_ns(now_ns, soonest_ns), inputs_ns)
        if placement.load_slot is not None:
            begin_ns = max(begin_ns, placement.ready_ns(now_ns))
        finish_ns = begin_ns + times.ns[index]
        if finish_ns <= due_ns:
            return finish_ns
        looked_at += 1
    return -1


def _is_late(worker: Worker, times: InferTimes, index: int, due_ns: int | None, load_ns: int) -> bool:
    """Return whether a batch can't end by an instant on a worker, behind a LOAD if one takes a duration.

    What is overdue there is not counted, and of an erratic model nothing is said but when it could begin.
    """
    if due_ns is None:
        return False
    begin_ns = worker.exec.free_ns
    if load_ns and worker.load.free_ns + load_ns > begin_ns:
        begin_ns = worker.load.free_ns + load_ns
    return begin_ns > due_ns if times.spreads.erratic else begin_ns + times.ns[index] > due_ns


def soonest(found: list[Plan]) -> Plan | None:
    """Return the plan that ends first, the first of several; None if there is none."""
    best: Plan | None = None
    for plan in found:
        if best is None or plan.finish_ns < best.finish_ns:
            best = plan
    return best


def earliest_finish_ns(found: list[Plan]) -> int | None:
    """Return when the plan that ends first does; None if there is none."""
    best = soonest(found)
    return None if best is None else best.finish_ns


def reject_evidence(
    cluster: Cluster, model: Model, found: list[Plan], waiting: int, ahead: Ahead | None = None
) -> RejectEvidence:
    """Return what `plans` found of a model, and how many others wait for it, as a rejection's evidence;
    ``ahead`` is what stood before a request that is refused early."""
    best = soonest(found)
    others: list[Plan] = []
    for plan in found:
        if plan is best:
            continue
        place = len(others)
        while place and plan.finish_ns < others[place - 1].finish_ns:
            place -= 1
        if place < CANDIDATES:
            others.insert(place, plan)
            if len(others) > CANDIDATES:
                others.pop()
    named = [_candidate(plan.placement, plan.finish_ns) for plan in others]
    absent = model.base.absent
    known = len(cluster.workers) - (absent & cluster.worker_bits.taken).bit_count()
    if len(found) < known and len(named) < CANDIDATES:
        planned = {plan.placement.worker.name for plan in found}
        for name, worker in cluster.workers.items():
            if name not in planned and not absent & worker.bit:
                named.append(_candidate(at(cluster, model, worker, keep=False), 0))
                if len(named) == CANDIDATES:
                    break
    more = known - len(named) - (best is not None)
    evidence = None if best is None else best.whole_evidence()
    return RejectEvidence(evidence, tuple(named), more, waiting, ahead)


def readiness(placement: Placement) -> Readiness:
    """Return how ready a worker is to run a model."""
    worker = placement.worker
    if worker.stopping:
        return Readiness.STOPPING
    if worker.draining or (worker.retiring and placement.state is _PREPARED):
        return Readiness.DRAINED
    if placement.model.pages_on(worker) > worker.pages.size:
        return Readiness.TOO_LARGE
    if not placement.model.may_run_on(worker):
        return Readiness.ASSIGNED
    state = placement.state
    if placement.leaving and state is not State.RELEASING:
        return Readiness.LEAVING
    if state is _PREPARED:
        return _READY_TO_LOAD
    if state is _RESIDENT:
        return _READY
    return Readiness(state.value)


def _candidate(placement: Placement, finish_ns: int) -> Candidate:
    detail = placement.detail[:DETAIL_CHARACTERS] if placement.failed else ""
    return Candidate(placement.worker.name, readiness(placement), finish_ns, detail)
