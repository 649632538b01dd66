"""LOADs by unfulfilled demand: whom to load next, and where (Clockwork, appendix B, "Loading Models").

The model of the highest priority by `DemandTracker` that is not loaded everywhere already, on the least
loaded worker whose LOAD executor needs work; what is evicted for it is least recently used.
"""

from __future__ import annotations

from mainspring.cluster.placements import Model, Placement, State, Worker
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.demand import DemandTracker
from mainspring.scheduler.policies.notes import worker_note
from mainspring.scheduler.state import SchedulerState

PASSED_OVER_NS = 5_000_000
"""How long a model that no worker can load now is not looked at again."""
LOOKED_AT = 8
"""Models of the highest priorities that are looked at within that time if none can be loaded."""


class DemandLoads:
    """Keeps the demand of each model, and answers `Policy.next_load`."""

    def __init__(self, state: SchedulerState, load_slo_ns: int | None = None) -> None:
        """``load_slo_ns`` as of `DemandTracker`."""
        self._state = state
        self._demand = DemandTracker(state, load_slo_ns)
        self._passed_over: list[Model] = []
        self._look_again_ns = 0

    def update(self, now_ns: int, model: Model) -> None:
        """Enter what happened to a model's queue; have LOADs considered if that asks for one."""
        if self._demand.update(now_ns, model):
            self._state.loads_dirty = True

    def take_back(self, now_ns: int, model: Model) -> None:
        """Enter that requests left a model's queue, which asks for no LOAD."""
        self._demand.update(now_ns, model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Let the demand for a worker's models go to the others."""
        for name in worker.placements:
            model = self._state.cluster.models.get(name)
            if model is not None and model.waiting:
                self.update(now_ns, model)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model of the highest load priority that some worker can take now.

        Models that no worker can take are passed over for a while, and not looked at on each event.
        """
        if now_ns >= self._look_again_ns:
            for model in self._passed_over:
                self._demand.put_back(model)
            self._passed_over.clear()
        while self._state.load_room and len(self._passed_over) < LOOKED_AT:
            taken = self._demand.take(now_ns)
            if taken is None:
                break
            plan = self._plan(now_ns, taken)
            if plan is not None:
                self._demand.put_back(taken)
                return plan
            if not self._passed_over:
                self._look_again_ns = now_ns + PASSED_OVER_NS
                self._state.alarms.set(self._look_again_ns, Alarm.RETRY)
            self._passed_over.append(taken)
            self._demand.set_aside(taken)
        return None

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        """Find the least loaded worker that can load a model now, in time for one of its requests."""
        state = self._state
        if not model.queue:
            return None
        last_due_ns = model.queue.dues[-1]
        soonest_ns = state.soonest_ns(now_ns)
        placements = model.placements
        candidates = []
        for name, worker in state.load_room.items():
            placement = placements.get(name)
            if placement is None or placement.state is not State.PREPARED or not placement.loadable:
                continue
            available_ns = worker.load.available_ns(now_ns, soonest_ns)
            if available_ns + placement.load_time.ns + placement.times.ns[0] <= last_due_ns:
                candidates.append((worker_note(worker).allocated_ns, available_ns, worker.number, placement))
        candidates.sort()
        for *_, placement in candidates:
            plan = self.plan(placement)
            if plan is not None:
                return plan
        return None

    def plan(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model, evicting by least recent use."""
        return plan_load(placement)
