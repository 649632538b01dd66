"""The scheduler's own invariants; the message of a failed check tells the entity's story."""

from __future__ import annotations

from mainspring.cluster.placements import Worker
from mainspring.cluster.validate import validate as validate_state
from mainspring.scheduler.load_queue import Pins
from mainspring.scheduler.state import SchedulerState


def validate(state: SchedulerState) -> None:
    """Check the cluster's state and the scheduler's beside it; raise AssertionError at the first fault."""
    cluster = state.cluster
    validate_state(cluster)
    for worker in cluster.workers.values():
        _check_loads(state, worker)
    for action_id, worker in state.idle_loads.items():
        assert worker.load.get(action_id) is not None, f"{worker.name} has no LOAD {action_id} outstanding"
    kept = sum(model.pages for model in cluster.models.values() if model.pinned)
    assert kept <= Pins(state).room_now, f"models that are kept take {kept} of {Pins(state).room_now} pages"


def _check_loads(state: SchedulerState, worker: Worker) -> None:
    """Check that no LOAD was decided long before its executor is free."""
    name = worker.name
    ahead_ns = max(state.ns.lookahead, state.ns.dispatch_delay)
    for load in worker.load.actions():
        decided_ms = (load.predicted_begin_ns - load.earliest_ns) / 1e6
        assert load.predicted_begin_ns - load.earliest_ns <= ahead_ns, (
            f"{load} was decided {decided_ms:.1f} ms before its executor is free, not {ahead_ns / 1e6:.1f}"
        )
    waits = name not in state.load_room
    assert not waits or len(worker.load), f"{name}: LOAD has nothing to do, and no room"
