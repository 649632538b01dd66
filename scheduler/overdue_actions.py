"""Actions that take far longer than predicted: requests that wait for them may go elsewhere.

An overdue action's predicted end moves on with the time (`Timeline.pushed_ns`), so that nothing more is sent
to wait for it. An action that has taken about twice as long as predicted counts as *stalled*: until its
result comes, LOADs are chosen as if its worker held nothing, or, for a LOAD, as if its model were not there.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, Slot
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Executed, Load, Open, kind_of
from mainspring.scheduler.load_queue import MissedModels
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.state import SchedulerState

SHORTEST_NS: Final = 10_000_000
"""An action that is overdue for less has not stalled: a LOAD elsewhere would hardly be done sooner."""


class OverdueActions:
    """Notices that actions stall, and that their results have arrived after all."""

    def __init__(self, state: SchedulerState, policy: Policy, missed: MissedModels) -> None:
        self._state = state
        self._policy = policy
        self._missed = missed

    def look(self, now_ns: int, worker: Worker) -> None:
        """Let other workers serve what waits for a stalled action; check again when another may stall."""
        first = worker.exec.first()
        if first is not None and not worker.stalled and stalled_at_ns(first) <= now_ns:
            worker.stalled = True
            self._all_changed(now_ns, worker)
        loaded = worker.load.first()
        if loaded is not None and stalled_at_ns(loaded) <= now_ns:
            placement = worker.placements[loaded.action.model]
            if not placement.load_stalled:
                placement.count_on_load(stalled=True)
                self._state.idle_loads.pop(loaded.action.action_id, None)
                self._changed(now_ns, placement)
        self.watch(now_ns, worker)

    def opens(self, now_ns: int, worker: Worker) -> None:
        """Let other workers serve what can't wait for an OPEN that was sent, until it has ended."""
        if not worker.stalled:
            worker.stalled = True
            self._all_changed(now_ns, worker)

    def watch(self, now_ns: int, worker: Worker) -> None:
        """Have a worker looked at when its LOAD, or an INFER that should have ended, may have stalled."""
        loaded = worker.load.first()
        if loaded is not None and not worker.placements[loaded.action.model].load_stalled:
            self._state.watch_for_stall(max(now_ns, stalled_at_ns(loaded)), worker)
        running = worker.exec.first() if worker.exec.overruns(now_ns) else None
        if running is not None and not worker.stalled:
            # That instant may be long past: nothing checks a worker for which nothing else waits.
            self._state.watch_for_stall(max(now_ns, stalled_at_ns(running)), worker)

    def exec_ended(self, now_ns: int, worker: Worker) -> None:
        """Count on a stalled EXEC again after a result, unless what it runs now has stalled, too."""
        first = worker.exec.first()
        if first is not None and stalled_at_ns(first) <= now_ns:
            return
        if any(isinstance(action, Open) for action in worker.exec.actions()):
            return
        worker.stalled = False
        self._all_changed(now_ns, worker)

    def _all_changed(self, now_ns: int, worker: Worker) -> None:
        """Check every model that a worker holds or is loading."""
        loading = [worker.placements[load.model] for load in worker.load.actions()]
        for placement in [*worker.lru.values(), *loading]:
            self._changed(now_ns, placement)

    def _changed(self, now_ns: int, placement: Placement) -> None:
        """Tell the policy and idle executors whether a model can be counted on at a worker."""
        for each in (placement, *placement.buckets):
            each.model.recount()
        if not placement.usable:
            return
        self._policy.weights_changed(now_ns, placement)
        if placement.model.waiting_idly:
            self._missed.want(placement.model)


def stalled_at_ns(slot: Slot[Executed] | Slot[Load]) -> int:
    """Return when the action that an executor runs counts as stalled if no result has arrived."""
    return slot.end_ns + max(SHORTEST_NS, slot.duration_ns)


def overdue_detail(now_ns: int, model: Model) -> str:
    """Say which overdue action keeps a model waiting, as the end of a sentence; "" if there is none."""
    for placement in model.usable.values():
        worker = placement.worker
        load = worker.load.first() if placement.load_slot is not None else None
        if load is not None and worker.load.overdue_ns(now_ns) > 0:
            return _overdue("LOAD", load.action.action_id, worker, worker.load.overdue_ns(now_ns))
        running = worker.exec.first()
        if running is not None and worker.exec.overdue_ns(now_ns) > 0:
            kind, action_id = kind_of(running.action), running.action.action_id
            return _overdue(kind, action_id, worker, worker.exec.overdue_ns(now_ns))
    return ""


def _overdue(kind: str, action_id: int, worker: Worker, overdue_ns: int) -> str:
    return f"; {kind} {action_id} on {worker.name} is {overdue_ns / 1e6:.1f} ms overdue"
