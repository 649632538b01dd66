"""LOADs by unfulfilled demand: estimates of load and demand across models and devices.

Clockwork, appendix B, "Loading Models". For each model *m*: its demand ``d_m``, the estimated execution
time of its queued requests that could still benefit from a LOAD; an allocation ``a_m,g`` of it to each
device *g* that holds the model, inversely proportional to the device's load ``l_g`` (the sum of its
allocations); and the load priority ``p_m = d_m - sum_g a_m,g * capacity_g / l_g``, an estimate of its
unfulfilled work. Updated for one model at a time, when something happens to it; all in whole
nanoseconds, so that nothing drifts.

The demand for a wide model (`state.is_replicated_widely`) is allocated to no device by itself: its
devices are taken to be loaded as all are on average, and what is demanded of wide models is a part of every
device's load. Shared out one by one it would come to much the same, and take the time of as many devices for
each request.
"""

from __future__ import annotations

import heapq
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.residency import is_everywhere, of_worker
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.loads import PolicyLoads, shortest_ns
from mainspring.scheduler.policies.notes import Demand, model_note, worker_note
from mainspring.scheduler.state import SchedulerState, is_replicated_widely

IDLE_LOAD_NS: Final = 1_000_000
"""Added to each load before it is inverted, so that an idle device's share is finite."""


SWEPT_FROM: Final = 1_024
"""A heap of fewer entries is not swept."""
_push_heap: Final = heapq.heappush
_pop_heap: Final = heapq.heappop


class DemandLoads(PolicyLoads):
    """LOADs by priority: the highest first that is not loaded everywhere already, on the least loaded worker.

    What is evicted is least recently used. `ModelNote.demand` has what is known of a model.
    """

    def __init__(self, state: SchedulerState, load_slo_ns: int | None = None) -> None:
        """Count only requests that arrived no longer ago than ``load_slo_ns``, if it is given."""
        super().__init__(state)
        self._load_slo_ns = load_slo_ns
        self._dispatch_delay_ns = state.ns.dispatch_delay
        self._capacity_ns = state.ns.load_capacity
        self._heap: list[tuple[int, int, Model]] = []
        self._sweep_from = SWEPT_FROM
        self._narrow_ns = 0
        """Time allocated to all devices of models that are not wide."""
        self._wide_ns = 0
        """Time allocated to all devices of wide models."""

    def of(self, model: Model) -> Demand:
        """Return a model's demand as it was last computed; zeros if it has none."""
        return model_note(model).demand or Demand()

    def update(self, now_ns: int, model: Model) -> None:
        """Enter what happened to a model's queue; have LOADs considered if that asks for one."""
        if self.refresh(now_ns, model):
            self._state.wants_loads()

    def refresh(self, now_ns: int, model: Model) -> bool:
        """Compute a model's demand from its queue as it is; return whether it asks for a LOAD."""
        note = model_note(model)
        demand = note.demand
        if not model.queue.dues:
            if demand is not None and demand.demand_ns:
                self._take_back(demand)
                demand.demand_ns = demand.priority_ns = demand.wanted_ns = 0
                demand.aside = False
            return False
        if demand is None:
            demand = note.demand = Demand()
        self._compute(now_ns, model, demand)
        self._enter(model, demand)
        if not demand.demand_ns:
            demand.aside = False
        return demand.wanted_ns > 0

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Let the demand for a worker's models go to the others."""
        for placement in of_worker(worker):
            for each in placement.by_bucket:
                if each.model.queue.dues:
                    self.update(now_ns, each.model)

    def take(self, now_ns: int) -> Model | None:
        """Take out the model of the highest positive priority, as it is now; `put_back` returns it.

        Priorities that fell since they were entered are put right as they come up.
        """
        heap = self._heap
        while heap:
            negative, number, model = heap[0]
            demand = model_note(model).demand
            if demand is None or demand.bound_ns != -negative:
                _pop_heap(heap)
                continue
            demand.bound_ns = wanted_ns = demand.wanted_ns
            if wanted_ns and wanted_ns != -negative:
                heapq.heapreplace(heap, (-wanted_ns, number, model))
                continue
            _pop_heap(heap)
            if wanted_ns:
                demand.bound_ns = demand.wanted_ns = 0
                self._compute(now_ns, model, demand)
                if self.worth(model, demand.priority_ns) == wanted_ns:
                    return model
                self._enter(model, demand)
        return None

    def worth(self, model: Model, priority_ns: int) -> int:
        """Return by what models are ordered that have a positive priority: by the priority itself."""
        return priority_ns

    def planned(self, model: Model) -> None:
        """Return the model to its place: its demand may ask for another LOAD."""
        self.put_back(model)

    def put_back(self, model: Model) -> None:
        """Return a model that was taken out to its place."""
        demand = model_note(model).demand
        if demand is not None:
            demand.aside = False
            self._enter(model, demand)

    def set_aside(self, model: Model) -> None:
        """Keep a model that was taken out from being taken again until it is put back."""
        demand = model_note(model).demand
        if demand is not None:
            demand.aside = True

    def worker_order(self, model: Model, worker: Worker, begin_ns: int) -> tuple[int, int, int] | None:
        """Return a worker's load, if its LOAD is in time for one of the model's requests."""
        dues = model.queue.dues
        if not dues or begin_ns + shortest_ns(model, worker) > dues[-1]:
            return None
        return worker_note(worker).allocated_ns, begin_ns, 0

    def validate(self) -> None:
        """Check that devices are allocated what models have there; raise AssertionError if not."""
        placed: dict[str, int] = {}
        spread_ns = 0
        for model in self._state.cluster.models.values():
            for each in model.by_bucket:
                demand = self.of(each)
                spread_ns += demand.spread_ns
                twice = demand.spread_ns and any(demand.allocations_ns)
                assert not twice, f"{each.name} is allocated as a wide model and as a narrow one"
                for index, worker in enumerate(demand.holders if demand.notes else []):
                    placed[worker.name] = placed.get(worker.name, 0) + demand.allocations_ns[index]
        assert spread_ns == self._wide_ns, f"wide models have {spread_ns} ns, not {self._wide_ns}"
        for name, worker in self._state.cluster.workers.items():
            allocated_ns, own_ns = worker_note(worker).allocated_ns, placed.get(name, 0)
            assert allocated_ns == own_ns, f"{name} has {allocated_ns} ns, and models {own_ns} there"

    def _enter(self, model: Model, demand: Demand) -> None:
        """Have the heap say a model's priority, or an earlier and higher one, if it can be loaded."""
        wanted_ns = demand.priority_ns
        if wanted_ns <= 0 or demand.aside or is_everywhere(self._state.cluster, model):
            wanted_ns = 0
        else:
            wanted_ns = self.worth(model, wanted_ns)
        demand.wanted_ns = wanted_ns
        if wanted_ns > demand.bound_ns:
            demand.bound_ns = wanted_ns
            _push_heap(self._heap, (-wanted_ns, model.number, model))
            if len(self._heap) > self._sweep_from:
                self._sweep()

    def _sweep(self) -> None:
        """Drop the entries that are not valid any more."""
        valid = {
            number: (bound, number, model)
            for bound, number, model in self._heap
            if self.of(model).bound_ns == -bound
        }
        self._heap[:] = valid.values()
        heapq.heapify(self._heap)
        self._sweep_from = 2 * len(self._heap) + SWEPT_FROM

    def _compute(self, now_ns: int, model: Model, demand: Demand) -> None:
        """Compute a model's demand, its allocations and its priority from what is true now."""
        wide = is_replicated_widely(self._state.cluster, model)
        if demand.holders is not model.holders or demand.wide != wide:
            self._take_back(demand)
            demand.holders, demand.wide = model.holders, wide
            demand.notes = [] if wide else [worker_note(worker) for worker in model.holders]
            demand.allocations_ns = [0] * len(demand.notes)
        demand.demand_ns = demand_ns = self._demand_ns(now_ns, model)
        if not demand_ns or not demand.holders:
            self._take_back(demand)
            demand.priority_ns = demand_ns
        elif wide:
            demand.priority_ns = demand_ns - self._spread(demand, self._work_until_due_ns(model))
        elif len(demand.holders) == 1:
            note, held_ns = demand.notes[0], demand.allocations_ns[0]
            demand.allocations_ns[0] = demand_ns
            self._narrow_ns += demand_ns - held_ns
            note.allocated_ns += demand_ns - held_ns
            load_ns = note.allocated_ns + self._wide_share_ns()
            capacity_ns = self._work_until_due_ns(model)
            demand.priority_ns = demand_ns - (demand_ns * capacity_ns // load_ns if load_ns else 0)
        else:
            demand.priority_ns = demand_ns - self._allocate(demand, self._work_until_due_ns(model))

    def _take_back(self, demand: Demand) -> None:
        """Take a model's allocations back."""
        for index, note in enumerate(demand.notes):
            held_ns = demand.allocations_ns[index]
            note.allocated_ns -= held_ns
            self._narrow_ns -= held_ns
            demand.allocations_ns[index] = 0
        self._wide_ns -= demand.spread_ns
        demand.spread_ns = 0

    def _wide_share_ns(self) -> int:
        """Return what a device is allocated of all wide models."""
        return self._wide_ns // max(1, self._state.cluster.open_workers) if self._wide_ns else 0

    def _spread(self, demand: Demand, capacity_ns: int) -> int:
        """Share a wide model's demand among its holders, and return how much of it they are able to do, as
        `_allocate`."""
        demand_ns = demand.demand_ns
        self._wide_ns += demand_ns - demand.spread_ns
        demand.spread_ns = demand_ns
        others_ns = self._narrow_ns + self._wide_ns - demand_ns
        load_ns = others_ns // max(1, self._state.cluster.open_workers) + demand_ns // len(demand.holders)
        return demand_ns * capacity_ns // load_ns if load_ns else 0

    def _work_until_due_ns(self, model: Model) -> int:
        """Return a device's ``capacity``: what it can do before requests that come now are due."""
        if self._capacity_ns:
            return self._capacity_ns
        last = model.queue.last
        assert last.due_ns is not None
        return last.due_ns - last.arrived_ns

    def _allocate(self, demand: Demand, capacity_ns: int) -> int:
        """Share a demand among the holders in inverse proportion to their other load.

        Return how much of it they are able to do: the sum over them of ``a * capacity / l``.
        """
        notes, held_ns = demand.notes, demand.allocations_ns
        weights = 0.0
        for index, note in enumerate(notes):
            weights += 1.0 / (note.allocated_ns - held_ns[index] + IDLE_LOAD_NS)
        scale = demand.demand_ns / weights
        fulfilled_ns, wide_ns = 0, self._wide_share_ns()
        for index, note in enumerate(notes):
            other_ns = note.allocated_ns - held_ns[index]
            held_ns[index] = allocated_ns = int(1.0 / (other_ns + IDLE_LOAD_NS) * scale)
            self._narrow_ns += other_ns + allocated_ns - note.allocated_ns
            note.allocated_ns = other_ns + allocated_ns
            load_ns = note.allocated_ns + wide_ns
            if load_ns:
                fulfilled_ns += allocated_ns * capacity_ns // load_ns
        return fulfilled_ns

    def _demand_ns(self, now_ns: int, model: Model) -> int:
        """Return ``d_m``: the work of the requests that a LOAD begun now would not make late."""
        queue = model.queue
        if not queue.dues:
            return 0
        single_ns = benefit_ns = 0
        for kind, times in model.infer_times.items():
            after_ns = model.load_times[kind].ns + times.ns[0]
            if not single_ns or after_ns < benefit_ns:
                single_ns, benefit_ns = times.ns[0], after_ns
        due_ns = now_ns + self._dispatch_delay_ns + benefit_ns
        if self._load_slo_ns is not None:
            # A model's requests mostly have one SLO, so that what arrived last tells when the others did.
            last = queue.last
            assert last.due_ns is not None
            due_ns = max(due_ns, now_ns - self._load_slo_ns + last.due_ns - last.arrived_ns)
        rows = queue.rows_due_from(due_ns)
        return rows * single_ns // model.spec.batch_sizes[0]
