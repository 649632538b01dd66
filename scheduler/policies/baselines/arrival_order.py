"""What the policies that look at no deadline have in common: queues in order of arrival.

Each model has one queue. Its batch is ready once it is full, or once its first request has waited for as
long as batches are held for; of the models that a worker holds, the one whose batch was ready first runs
first, on whichever worker is free first. Nothing is refused because it can't be in time, and what has
become late is run all the same. Models are loaded on demand in the order of their oldest request's arrival
(`wishes`), over the least recently used. Requests without a deadline stay with the core, which runs them in
idle time.

A batch that no compiled size fits exactly is padded to the next larger one.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.baselines.fifo_queue import BEHIND_NS, FifoQueue
from mainspring.scheduler.policies.baselines.ordered_loads import OrderedLoads
from mainspring.scheduler.policies.ready_queue import ReadyQueuePolicy, enter, ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.placements import Model, Placement, Worker
    from mainspring.cluster.requests import Request
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class ArrivalOrder(ReadyQueuePolicy):
    """Batches in order of arrival, by what `full_rows` and `batch_rows` say of their size."""

    refuses: ClassVar[bool] = False
    serves_late: ClassVar[bool] = True
    lookahead_ms: ClassVar[float] = 1.0

    def __init__(self, state: SchedulerState, options: msgspec.Struct, hold_ms: float) -> None:
        """``hold_ms`` is how long a batch that is not full waits for more requests."""
        super().__init__(state, options)
        self._hold_ns = milliseconds(hold_ms)
        self._queues: dict[int, FifoQueue] = {}
        """The queue of each model that requests wait for, by number."""
        self._absent = OrderedLoads(state, evicts=True)
        self._copies = OrderedLoads(state, evicts=False)

    @abstractmethod
    def full_rows(self, placement: Placement) -> int:
        """Return how many rows have to wait for a batch that is held for no more."""

    @abstractmethod
    def batch_rows(self, placement: Placement, waiting: int) -> int:
        """Return how many rows a batch may have where so many wait."""

    def sort_out(self, now_ns: int, queue: FifoQueue) -> None:
        """Put those behind that are to wait for all others; none, unless a policy says otherwise."""

    def queued(self, now_ns: int, request: Request) -> None:
        """Line the model up on its workers if its batch has become ready sooner; ask for its LOAD."""
        model = request.model
        queue = self._queues.get(model.number)
        if queue is None:
            queue = self._queues[model.number] = FifoQueue()
        queue.add(request)
        first = queue.head is request
        for placement in model.usable.values():
            if first or (self._hold_ns and queue.rows >= self.full_rows(placement)):
                enter(placement, self._ready_ns(queue, placement))
        if first:
            self._wish(model, queue)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request out of the queue."""
        self._remove(request)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Take the batch's requests out of the queue, and line the rest up."""
        for request in batch.requests:
            self._remove(request)
        self.offer(batch.placement)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Enter the model on the worker or void its entry; ask for its LOAD."""
        super().residency_changed(now_ns, placement)
        self._wish_again(placement.model)

    def worker_joined(self, now_ns: int, worker: Worker) -> None:
        """Ask for what waits: this worker may load it."""
        for number in list(self._queues):
            self._wish_again(self._queues[number].head.model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Ask for what only this worker held."""
        for placement in worker.placements.values():
            self._wish_again(placement.model)

    def offer(self, placement: Placement) -> None:
        """Enter a placement by when its batch is ready, if requests wait."""
        if placement.usable and placement.model.number in self._queues:
            enter(placement, self.key(placement))

    def key(self, placement: Placement) -> int:
        """Return when a model's batch is, or was, ready on a worker; what was put behind comes last."""
        return self._ready_ns(self._queues[placement.model.number], placement)

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return when a model's batch is or was ready; None if it is and the weights are not."""
        self.sort_out(now_ns, self._queues[placement.model.number])
        ready_ns = self.key(placement)
        if now_ns < ready_ns < BEHIND_NS:
            return ready_ns, 0, 0
        begin_ns = ready_by_ns(now_ns, placement, available_ns, self.state.soonest_ns(now_ns))
        return None if begin_ns is None else (ready_ns, 0, 0)

    def batch(self, now_ns: int, placement: Placement, index: int, first: int) -> Batch | None:
        """Fill a batch from the queue's front, or have the worker asked again once it is ready.

        A first request of more rows than a batch may have goes alone.
        """
        queue = self._queues[placement.model.number]
        ready_ns = self._ready_ns(queue, placement)
        if now_ns < ready_ns < BEHIND_NS:
            self.state.arm_exec(ready_ns, placement.worker)
            return None
        requests = queue.first(self.batch_rows(placement, queue.rows))
        rows = sum([request.rows for request in requests])
        return Batch(placement, placement.times.index_for(rows), requests)

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the model whose oldest request came first, of those that no worker holds."""
        plan = self._absent.next_load(now_ns, _always)
        return plan or self._copies.next_load(now_ns, _always)

    def _ready_ns(self, queue: FifoQueue, placement: Placement) -> int:
        """Return when a queue's batch is, or was, ready on a worker; what was put behind comes last."""
        rank_ns = queue.head_rank_ns
        if not self._hold_ns or rank_ns >= BEHIND_NS:
            return rank_ns
        held_ns = rank_ns + self._hold_ns
        full_rows = self.full_rows(placement)
        return min(held_ns, queue.filled_ns(full_rows)) if queue.rows >= full_rows else held_ns

    def _remove(self, request: Request) -> None:
        queue = self._queues[request.model.number]
        queue.remove(request)
        if not len(queue):
            del self._queues[request.model.number]
            self._absent.drop(request.model)
            self._copies.drop(request.model)

    def _wish_again(self, model: Model) -> None:
        queue = self._queues.get(model.number)
        if queue is not None:
            self._wish(model, queue)

    def _wish(self, model: Model, queue: FifoQueue) -> None:
        """Ask for a LOAD of a model where it is not held, by the arrival of its first request."""
        if not model.holders:
            self._absent.wish(model, queue.head_rank_ns)
        elif len(model.usable) < len(model.placements):
            self._absent.drop(model)
            self._copies.wish(model, queue.head_rank_ns)
        else:
            self._absent.drop(model)
            self._copies.drop(model)


def _always(placement: Placement, ready_ns: int) -> bool:  # noqa: ARG001
    """Every LOAD is of use to requests that are served late too."""
    return True
