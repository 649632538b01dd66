"""Load and demand estimates across models and devices: who should be loaded next.

Clockwork, appendix B, "Loading Models". For each model *m*: its demand ``d_m``, the estimated execution
time of its queued requests that could still benefit from a LOAD; an allocation ``a_m,g`` of it to each
device *g* that holds the model, inversely proportional to the device's load ``l_g`` (the sum of its
allocations); and the load priority ``p_m = d_m - sum_g a_m,g * capacity_g / l_g``, an estimate of its
unfulfilled work. Updated for one model at a time, when something happens to it; all in whole
nanoseconds, so that nothing drifts.
"""

from __future__ import annotations

import heapq

from mainspring.scheduler.books import Books
from mainspring.scheduler.mirror import Model, Worker

IDLE_LOAD_NS = 1_000_000
"""Added to each load before it is inverted, so that an idle device's share is finite."""


class Demand:
    """One model's demand, allocations and priority, and the priority that its heap entry says."""

    __slots__ = ("allocations", "aside", "demand_ns", "entry_ns", "priority_ns")

    def __init__(self) -> None:
        self.demand_ns = 0
        self.entry_ns = 0
        self.aside = False
        self.priority_ns = 0
        self.allocations: dict[str, int] = {}


class DemandTracker:
    """Priorities of the models that have any, highest first."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._demands: dict[str, Demand] = {}
        self._load_ns: dict[str, int] = {}
        self._heap: list[tuple[int, int, Model]] = []

    def of(self, model: Model) -> Demand:
        """Return a model's demand as it was last computed; zeros if it has none."""
        return self._demands.get(model.name) or Demand()

    def device_load_ns(self, worker: Worker) -> int:
        """Return ``l_g``: the work that is allocated to a worker."""
        return self._load_ns.get(worker.name, 0)

    def update(self, now_ns: int, model: Model) -> bool:
        """Enter what happened to a model; return whether it asks for a LOAD that some worker could give."""
        demand = self._demands.get(model.name)
        if demand is None:
            if not model.queue.rows:
                return False
            demand = self._demands[model.name] = Demand()
        self._compute(now_ns, model, demand)
        self._enter(model, demand)
        if not demand.demand_ns:
            del self._demands[model.name]
        return demand.entry_ns > 0

    def take(self, now_ns: int) -> Model | None:
        """Take out the model of the highest positive priority, as it is now; `put_back` returns it."""
        while self._heap:
            negative, _, model = heapq.heappop(self._heap)
            demand = self._demands.get(model.name)
            if demand is None or demand.entry_ns != -negative:
                continue
            demand.entry_ns = 0
            self._compute(now_ns, model, demand)
            if demand.priority_ns == -negative:
                return model
            self._enter(model, demand)
        return None

    def put_back(self, model: Model) -> None:
        """Return a model that was taken out to its place."""
        demand = self._demands.get(model.name)
        if demand is not None:
            demand.aside = False
            self._enter(model, demand)

    def set_aside(self, model: Model) -> None:
        """Keep a model that was taken out from being taken again until it is put back."""
        demand = self._demands.get(model.name)
        if demand is not None:
            demand.aside = True

    def _enter(self, model: Model, demand: Demand) -> None:
        """Let the heap's one valid entry of a model say its priority, if it has any and can be loaded."""
        wanted = demand.priority_ns > 0 and not demand.aside and len(model.usable) < len(model.placements)
        entry_ns = demand.priority_ns if wanted else 0
        if entry_ns != demand.entry_ns:
            demand.entry_ns = entry_ns
            if entry_ns:
                heapq.heappush(self._heap, (-entry_ns, model.number, model))

    def _compute(self, now_ns: int, model: Model, demand: Demand) -> None:
        """Compute a model's demand, its allocations and its priority from what is true now."""
        loads = self._load_ns
        for name, allocated_ns in demand.allocations.items():
            loads[name] -= allocated_ns
        demand_ns = demand.demand_ns = demand.priority_ns = self._demand_ns(now_ns, model)
        demand.allocations = self._allocate(model, demand_ns)
        capacity_ns = self._books.ns.load_capacity
        for name, allocated_ns in demand.allocations.items():
            load_ns = loads[name] = loads.get(name, 0) + allocated_ns
            if load_ns:
                demand.priority_ns -= allocated_ns * capacity_ns // load_ns

    def _demand_ns(self, now_ns: int, model: Model) -> int:
        """Return ``d_m``: the work of the requests that a LOAD begun now would not make late."""
        if not model.queue.rows:
            return 0
        single_ns = benefit_ns = 0
        for kind, times in model.infer_times.items():
            after_ns = model.load_times[kind].ns + times.ns[0]
            if not single_ns or after_ns < benefit_ns:
                single_ns, benefit_ns = times.ns[0], after_ns
        due_ns = self._books.soonest_ns(now_ns) + benefit_ns
        return model.queue.rows_due_from(due_ns) * single_ns // model.spec.batch_sizes[0]

    def _allocate(self, model: Model, demand_ns: int) -> dict[str, int]:
        """Share a demand among the workers that hold the model, in inverse proportion to their load."""
        usable = model.usable
        if len(usable) <= 1:
            return dict.fromkeys(usable, demand_ns)
        loads = self._load_ns
        weights = [1.0 / (loads.get(name, 0) + IDLE_LOAD_NS) for name in usable]
        scale = demand_ns / sum(weights)
        return {name: int(weight * scale) for name, weight in zip(usable, weights, strict=True)}
