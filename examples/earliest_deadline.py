"""A scheduling policy of one's own: earliest deadline first.

mainspring up --store store --policy examples.earliest_deadline:EarliestDeadline
"""

from __future__ import annotations

from mainspring.cluster.placements import Placement
from mainspring.cluster.requests import Request
from mainspring.cluster.residency import able, at
from mainspring.cluster.workers import Worker
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.state import READY_SLACK_NS


class EarliestDeadline(Policy):
    """Runs, and loads, the model whose oldest request is due first."""

    name = "earliest-deadline"

    def queued(self, now_ns: int, request: Request) -> None:
        """Have the core ask for loads again: there is demand."""
        self.state.wants_loads()

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the largest batch that is in time, of the model whose first request is due first."""
        usable = [p for p in worker.placements.values() if p.usable and p.model.queue]
        for placement in sorted(usable, key=lambda p: (p.model.queue.head_due_ns, p.model.number)):
            ready_ns = placement.ready_ns(now_ns)
            if ready_ns <= max(available_ns, self.state.soonest_ns(now_ns) + READY_SLACK_NS):
                batch = self._batch(now_ns, placement, available_ns)
                if batch is not None:
                    return batch
        return None

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model that is nowhere and whose first request is due first, where it can be in time."""
        waiting = [m for m in self.state.cluster.models.values() if m.queue and not m.usable]
        for model in sorted(waiting, key=lambda m: (m.queue.head_due_ns, m.number)):
            for worker in able(model, self.state.with_room()):
                placement = at(self.state.cluster, model, worker)
                useful_ns = now_ns + placement.load_time.ns + placement.times.ns[0]
                if model.queue.first_feasible(useful_ns, model.spec.max_rows) < len(model.queue):
                    return plan_load(placement)
        return None

    def _batch(self, now_ns: int, placement: Placement, available_ns: int) -> Batch | None:
        queue, times = placement.model.queue, placement.times
        for index in range(times.index_for(min(queue.rows, times.sizes[-1])), -1, -1):
            begin_ns = self.state.begin_ns(now_ns, placement, index, available_ns)
            first = queue.first_feasible(begin_ns + times.ns[index], times.sizes[index])
            if first < len(queue):
                return Batch(placement, index, queue.fill(first, times.sizes[index]))
        return None
