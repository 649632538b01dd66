"""The policy of Clockwork (OSDI '20), section 5.3 and appendix B.

*INFER.* Every request gives a strategy for each batch size: it must start by its due instant less the
batch's estimated duration. An executor takes the strategy with the earliest required start among those
whose model it holds, that can complete in time behind its outstanding work, whose batch size the model
has enough such requests for, and for which there are not enough for a larger one. All strategies of one
model and size that matter on an executor belong to its first request that can still make it, so one
entry for each model and worker, kept by a lower bound of its required start, stands for the whole queue.

*LOAD.* The model of the highest priority by `DemandTracker` that is not loaded everywhere already, on
the least loaded worker whose LOAD executor needs work. *UNLOAD.* Least recently used.

Beyond the paper, as the design asks: requests of several rows, and a padded batch of the next larger
size where it finishes sooner than two smaller ones (`SchedulerConfig.pad_batches`).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, ClassVar

from mainspring.scheduler.books import READY_SLACK_NS, Alarm
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.demand import DemandTracker

if TYPE_CHECKING:
    from mainspring.scheduler.books import Books
    from mainspring.scheduler.estimates import InferTimes
    from mainspring.scheduler.mirror import Model, Placement, Worker
    from mainspring.scheduler.requests import DeadlineQueue, Request

PASSED_OVER_NS = 5_000_000
"""How long a model that no worker can load now is not looked at again."""
LOOKED_AT = 8
"""Models of the highest priorities that are looked at within that time if none can be loaded."""

Entry = tuple[int, int, "Placement"]
"""(lower bound of the required start, model's number, placement)"""


class Clockwork(Policy):
    """Strategies by required start time, loads by unfulfilled demand."""

    name: ClassVar[str] = "clockwork"

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._strategies: dict[str, list[Entry]] = {}
        self._demand = DemandTracker(books)
        self._passed_over: list[Model] = []
        self._look_again_ns = 0

    def queued(self, now_ns: int, request: Request) -> None:
        """Enter the new strategies, and the new demand.

        While a queue is not empty each worker's entry stands for all of it, so that there is something to
        enter only when the queue's head or the batch that it could fill asks for an earlier start.
        """
        model = request.model
        sizes, due_ns = model.spec.batch_sizes, model.queue.head_due_ns
        size = next((size for size in sizes if size >= model.queue.rows), sizes[-1])
        offered = model.offered if len(model.queue) > 1 else None
        if offered is None or due_ns < offered[0] or size > offered[1]:
            for placement in model.usable.values():
                self._offer(placement)
        self._update_demand(now_ns, model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request's demand back; its strategies are dropped when they come up."""
        self._demand.update(now_ns, request.model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Take the batch's demand back; its strategies are dropped when they come up."""
        self._demand.update(now_ns, batch.placement.model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Offer the model's strategies to the worker, or drop them; allocate its demand anew."""
        if placement.usable:
            self._offer(placement)
        else:
            placement.strategy_key = None
        self._update_demand(now_ns, placement.model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Drop the worker's strategies; its models' demand goes to the others."""
        self._strategies.pop(worker.name, None)
        for name in worker.placements:
            model = self.books.cluster.models.get(name)
            if model is not None and model.waiting:
                self._update_demand(now_ns, model)

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the eligible strategy of the earliest required start, with its requests."""
        heap = self._strategies.get(worker.name)
        if not heap:
            return None
        best: tuple[int, int, Placement, int, int] | None = None
        seen: list[Placement] = []
        while heap and (best is None or heap[0][:2] < best[:2]):
            key, _, placement = heapq.heappop(heap)
            if placement.strategy_key != key:
                continue
            placement.strategy_key = None
            if not placement.model.queue.rows or not placement.usable:
                continue
            seen.append(placement)
            found = self._strategy(now_ns, placement, available_ns)
            if found is not None:
                start_ns, index, first = found
                candidate = (start_ns, placement.model.number, placement, index, first)
                if best is None or candidate[:2] < best[:2]:
                    best = candidate
        for placement in seen:
            self._offer(placement)
        if best is None:
            return None
        _, _, placement, index, first = best
        requests = placement.model.queue.fill(first, placement.times.sizes[index])
        return Batch(placement, index, requests)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the model of the highest load priority that some worker can take now.

        Models that no worker can take are passed over for a while, and not looked at on each event.
        """
        if now_ns >= self._look_again_ns:
            for model in self._passed_over:
                self._demand.put_back(model)
            self._passed_over.clear()
        while self.books.load_room and len(self._passed_over) < LOOKED_AT:
            taken = self._demand.take(now_ns)
            if taken is None:
                break
            plan = self._plan(now_ns, taken)
            if plan is not None:
                self._demand.put_back(taken)
                return plan
            if not self._passed_over:
                self._look_again_ns = now_ns + PASSED_OVER_NS
                self.books.arm(self._look_again_ns, Alarm.RETRY)
            self._passed_over.append(taken)
            self._demand.set_aside(taken)
        return None

    def _offer(self, placement: Placement) -> None:
        """Enter a model's strategies on a worker by a lower bound of their required start."""
        queue = placement.model.queue
        if not queue.rows:
            return
        times, due_ns = placement.times, queue.head_due_ns
        index = times.index_for(min(queue.rows, times.sizes[-1]))
        key = due_ns - times.ns[index]
        if placement.strategy_key is None or key < placement.strategy_key:
            placement.strategy_key = key
            placement.model.offered = due_ns, times.sizes[index]
            heap = self._strategies.setdefault(placement.worker.name, [])
            heapq.heappush(heap, (key, placement.model.number, placement))

    def _update_demand(self, now_ns: int, model: Model) -> None:
        if self._demand.update(now_ns, model):
            self.books.loads_dirty = True

    def _strategy(self, now_ns: int, placement: Placement, available_ns: int) -> tuple[int, int, int] | None:
        """Return (required start, size index, first request's index) of a model's strategy on a worker.

        The size is the largest that the requests which can still make it fill; None if none can.
        """
        begin_ns = self._begin_ns(now_ns, placement, available_ns)
        if begin_ns is None:
            return None
        queue, times = placement.model.queue, placement.times
        largest = times.index_for(min(queue.rows, times.sizes[-1]))
        for index in range(largest, -1, -1):
            size = times.sizes[index]
            first = queue.first_feasible(begin_ns + times.ns[index], size)
            if first == len(queue):
                continue
            smallest = index == 0 or queue.rows_at(first) > times.sizes[index - 1]
            if smallest or queue.rows_from(first, size) >= size:
                pads = self.books.config.pad_batches
                chosen = _padded(queue, times, index, first, begin_ns) if pads else index
                return queue.due_at(first) - times.ns[chosen], chosen, first
        return None

    def _begin_ns(self, now_ns: int, placement: Placement, available_ns: int) -> int | None:
        """Return when a batch could begin on a worker; None while its LOAD is not about to end."""
        ready_ns = placement.ready_ns(now_ns)
        if ready_ns > max(available_ns, self.books.soonest_ns(now_ns) + READY_SLACK_NS):
            return None
        return max(ready_ns, available_ns)

    def _plan(self, now_ns: int, model: Model) -> LoadPlan | None:
        """Find the least loaded worker that can load a model now, in time for one of its requests."""
        books = self.books
        soonest_ns = books.soonest_ns(now_ns)
        candidates = []
        for placement in model.placements.values():
            worker = placement.worker
            if worker.name not in books.load_room or not placement.loadable:
                continue
            available_ns = worker.load.available_ns(now_ns, soonest_ns)
            useful_ns = available_ns + placement.load_time.ns + placement.times.ns[0]
            if model.queue.first_feasible(useful_ns, model.spec.max_rows) < len(model.queue):
                candidates.append(
                    (self._demand.device_load_ns(worker), available_ns, worker.number, placement)
                )
        for *_, placement in sorted(candidates, key=lambda candidate: candidate[:3]):
            plan = plan_load(placement)
            if plan is not None:
                return plan
        return None


def _padded(queue: DeadlineQueue, times: InferTimes, index: int, first: int, begin_ns: int) -> int:
    """Return the next larger size's index if one padded batch ends sooner than two exact ones."""
    larger = index + 1
    if larger == len(times.sizes) or queue.due_at(first) < begin_ns + times.ns[larger]:
        return index
    rest = queue.rows_from(first, times.sizes[larger]) - times.sizes[index]
    if rest > 0 and times.ns[larger] < times.ns[index] + times.for_rows(rest):
        return larger
    return index
