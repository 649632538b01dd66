"""By when each worker could have run a request at some moment, and why not sooner.

This is the arithmetic of the scheduler's admission (`scheduler.admission`), for each worker by itself: an
INFER of the request alone, behind what the worker had been told to do, after a LOAD if it needs one.
"""

from __future__ import annotations

import msgspec

from mainspring.cluster.estimates import indices_by_rows
from mainspring.console.queries.moment import KNOWN, Moment
from mainspring.console.view.actions import Action, Lane
from mainspring.console.view.models import (
    BROKEN,
    FAILED,
    LOADING,
    PREPARED,
    PREPARING,
    RELEASING,
    RESIDENT,
)
from mainspring.console.view.workers import WorkerState
from mainspring.messages.model import ModelSpec


class Plan(msgspec.Struct, frozen=True):
    """What one worker could have done."""

    worker: str
    state: str
    """Where the model was on it."""
    finish_ns: int | None = None
    """Predicted end of EXEC; None if it could not run the model."""
    begin_ns: int = 0
    """Predicted begin of EXEC."""
    infer_ns: int = 0
    """How long EXEC would take."""
    load_ns: int = 0
    """How long a LOAD would take that has to come first; 0 for none."""
    loaded_ns: int = 0
    """When the weights would be there; 0 if they were."""
    exec_free_ns: int = 0
    """When EXEC would be done with what it had been told to do, or could begin at the soonest."""
    inputs_ns: int = 0
    """When the inputs would be there."""
    ahead: tuple[Action, ...] = ()
    """What EXEC had been told to do."""
    loading: tuple[Action, ...] = ()
    """What LOAD had been told to do."""
    why_not: str = ""
    """Why it could not run the model."""


def plans(moment: Moment, spec: ModelSpec, rows: int) -> list[Plan]:
    """Return what each worker could have done with a request, in the order in which they joined."""
    if not 0 < rows <= spec.max_rows:
        return []
    return [_plan(moment, worker, spec, rows) for worker in moment.workers()]


def best(found: list[Plan]) -> Plan | None:
    """Return the plan that ends first; None if no worker could run the model."""
    possible = [plan for plan in found if plan.finish_ns is not None]
    return min(possible, key=lambda plan: plan.finish_ns or 0, default=None)


def _plan(moment: Moment, worker: WorkerState, spec: ModelSpec, rows: int) -> Plan:
    state = moment.where(worker, spec.name)
    why_not = _why_not(moment, worker, spec, state)
    if why_not:
        return Plan(worker.name, state, why_not=why_not)
    durations = moment.view.fleet.durations
    index = indices_by_rows(spec.batch_sizes)[rows]
    infer_ns, transfer_ns = durations.infer_at(worker.device_kind, spec, moment.seq, index)
    now_ns, soonest_ns = moment.now_ns, moment.soonest_ns
    timeline = moment.exec(worker)
    exec_free_ns = timeline.available_ns(now_ns, soonest_ns)
    inputs_ns = timeline.inputs_at_ns(soonest_ns, transfer_ns)
    load_ns = loaded_ns = 0
    if state == PREPARED:
        load_ns = durations.load_at(worker.device_kind, spec, moment.seq)
        loaded_ns = moment.load(worker).available_ns(now_ns, soonest_ns) + load_ns
    elif state == LOADING:
        loaded_ns = max(now_ns, _loaded_ns(moment, worker, spec.name))
    begin_ns = max(exec_free_ns, inputs_ns, loaded_ns)
    return Plan(
        worker=worker.name,
        state=state,
        finish_ns=begin_ns + infer_ns,
        begin_ns=begin_ns,
        infer_ns=infer_ns,
        load_ns=load_ns,
        loaded_ns=loaded_ns,
        exec_free_ns=exec_free_ns,
        inputs_ns=inputs_ns,
        ahead=tuple(moment.outstanding(worker.history.exec)),
        loading=tuple(moment.outstanding(worker.history.load)) if loaded_ns else (),
    )


def _loaded_ns(moment: Moment, worker: WorkerState, model: str) -> int:
    """Return when the LOAD under way of a model was predicted to end; 0 if it is not known."""
    timeline = moment.load(worker)
    for action in moment.outstanding(worker.history.load):
        slot = timeline.get(action.id) if action.model == model else None
        if slot is not None:
            return slot.end_ns + timeline.pushed_ns(moment.now_ns)
    return 0


def _why_not(moment: Moment, worker: WorkerState, spec: ModelSpec, state: str) -> str:
    """Return why a worker could not run a model at all; empty if it could."""
    if worker.stopping_seq and worker.stopping_seq < moment.seq:
        return "it was stopping"
    drained_by = moment.view.operations.drained_at(worker.name, moment.now_ns)
    if drained_by:
        return f"{drained_by} had it drained"
    if spec.pages > worker.pages:
        return f"the model needs {spec.pages} pages and it has {worker.pages}"
    placement = worker.placements.get(spec.name)
    detail = "" if placement is None else placement.detail
    return {
        RESIDENT: "",
        LOADING: "",
        PREPARED: "",
        PREPARING: "it was still preparing the model",
        RELEASING: "it was giving up an older copy of the model",
        FAILED: f"it could not prepare the model: {detail}",
        BROKEN: f"the model was given up there: {detail}",
        KNOWN: "it had not prepared the model",
    }[state]


def told(plan: Plan, since_ns: int) -> str:
    """Return a plan in words; instants are told from ``since_ns`` on."""
    if plan.finish_ns is None:
        return plan.why_not
    parts = [_weights(plan, since_ns)]
    if plan.ahead:
        parts.append(f"EXEC busy until {_after(plan.exec_free_ns, since_ns)} with {_work(plan.ahead)}")
    else:
        parts.append("EXEC idle")
    if plan.inputs_ns == plan.begin_ns > max(plan.exec_free_ns, plan.loaded_ns):
        parts.append(f"inputs there at {_after(plan.inputs_ns, since_ns)}")
    parts.append(f"EXEC takes {ms(plan.infer_ns)}, so done at {_after(plan.finish_ns, since_ns)}")
    return "; ".join(parts)


def _weights(plan: Plan, since_ns: int) -> str:
    if plan.state == RESIDENT:
        return "resident"
    there = f"weights there at {_after(plan.loaded_ns, since_ns)}"
    if plan.state == LOADING:
        return f"being loaded, {there}"
    behind = f" behind {_work(plan.loading)}" if plan.loading else ""
    return f"not resident: LOAD takes {ms(plan.load_ns)}{behind}, {there}"


def _work(actions: tuple[Action, ...]) -> str:
    last = actions[-1]
    size = f" of batch {last.batch_size}" if last.kind == "INFER" else ""
    rest = f" and {len(actions) - 1} before it" if len(actions) > 1 else ""
    return f"{last.kind} {last.id} ({last.model}{size}){rest}"


def lane_of(worker: WorkerState, kind: str) -> Lane:
    """Return the lane in which actions of a kind are."""
    history = worker.history
    return {"INFER": history.exec, "LOAD": history.load}.get(kind, history.other)


def ms(duration_ns: int) -> str:
    """Return a duration in milliseconds, for a person."""
    return f"{duration_ns / 1e6:.1f} ms"


def _after(instant_ns: int, since_ns: int) -> str:
    return f"{(instant_ns - since_ns) / 1e6:+.1f} ms"
