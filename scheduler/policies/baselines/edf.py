"""Earliest deadline first, with batching.

The order of Liu and Layland (JACM 1973) over models: a device that is free runs the model whose first
request that can still make it is due first, in the largest batch that ends before that request is due.
Requests that can't make it any more are skipped, and expire. Such a request at the head of a busy queue is
about to be too late for all but the smallest batch, so the batches get small just when larger ones are
needed; ``skip_heads`` lets a batch begin at the first request that its size is still in time for.

*LOAD.* The model whose first request is due first among those that no worker holds and that a LOAD begun now
can still save, over the least recently used; then further copies, into free pages (`wishes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.baselines.ordered_loads import OrderedLoads
from mainspring.scheduler.policies.batching import largest_batch, largest_index
from mainspring.scheduler.policies.options import EdfOptions
from mainspring.scheduler.policies.ready_queue import ReadyQueuePolicy, enter, ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.estimates import InferTimes
    from mainspring.cluster.placements import Model, Placement, Worker
    from mainspring.cluster.requests import DeadlineQueue, Request
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(ReadyQueuePolicy):
    """The model whose head is due first, in the largest batch that is in time for it."""

    name: ClassVar[str] = "edf"
    Options: ClassVar[type[msgspec.Struct]] = EdfOptions

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        assert isinstance(options, EdfOptions)
        super().__init__(state, options, keeps_keys=True)
        self._skips = options.skip_heads
        self._pads = bool(state.config.pad_batches)
        self._absent = OrderedLoads(state, evicts=True)
        self._copies = OrderedLoads(state, evicts=False)

    def queued(self, now_ns: int, request: Request) -> None:
        """Line the model up on its workers where the request is due before what it is lined up by."""
        model, due_ns = request.model, request.due_ns
        assert due_ns is not None
        for placement in model.usable.values():
            enter(placement, due_ns)
        if due_ns == model.queue.dues[0]:
            self._wish(model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the model's wish back if it waits for nothing."""
        self._drop_idle(request.model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Take the model's wish back if it waits for nothing."""
        self._drop_idle(batch.placement.model)

    def residency_changed(self, now_ns: int, placement: Placement) -> None:
        """Enter the model on the worker or void its entry; ask for its LOAD."""
        super().residency_changed(now_ns, placement)
        self._wish(placement.model)

    def worker_joined(self, now_ns: int, worker: Worker) -> None:
        """Ask for what waits: this worker may load it."""
        for placement in worker.placements.values():
            self._wish(placement.model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Ask for what only this worker held."""
        for placement in worker.placements.values():
            self._wish(placement.model)

    def key(self, placement: Placement) -> int:
        """Return the first instant at which any request of a model is due."""
        return placement.model.queue.dues[0]

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return when the first request that can be in time is due, and the largest batch for it."""
        begin_ns = ready_by_ns(now_ns, placement, available_ns, self.state.soonest_ns(now_ns))
        if begin_ns is None:
            return None
        queue, times = placement.model.queue, placement.times
        head = self._head(queue, times, begin_ns, inputs_ns)
        if head == len(queue.dues):
            return None
        least, top = times.index_of[queue.rows_at(head)], largest_index(queue, times)
        found = largest_batch(queue, times, top, begin_ns, inputs_ns, self._pads, -1 if self._skips else head)
        if found is None or found[0] <= least:
            return queue.dues[head], least, head
        return queue.dues[head], found[0], found[1]

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the model whose first request is due first, of those that no worker holds."""
        plan = self._absent.next_load(now_ns, _saves)
        return plan or self._copies.next_load(now_ns, _saves)

    def _head(self, queue: DeadlineQueue, times: InferTimes, begin_ns: int, inputs_ns: int) -> int:
        """Return the index of the first request that the smallest batch that holds it is in time for."""
        first = queue.first_feasible(
            max(begin_ns, inputs_ns + times.transfer_ns[0]) + times.ns[0], times.sizes[-1]
        )
        if queue.rows != len(queue.dues):
            while first < len(queue.dues):
                index = times.index_of[queue.rows_at(first)]
                if queue.dues[first] >= max(begin_ns, inputs_ns + times.transfer_ns[index]) + times.ns[index]:
                    break
                first += 1
        return first

    def _wish(self, model: Model) -> None:
        """Ask for a LOAD of a model where it is not held, by its head."""
        if not model.queue.dues:
            return
        if not model.holders:
            self._absent.wish(model, model.queue.dues[0])
        elif len(model.usable) < len(model.placements):
            self._absent.drop(model)
            self._copies.wish(model, model.queue.dues[0])
        else:
            self._absent.drop(model)
            self._copies.drop(model)

    def _drop_idle(self, model: Model) -> None:
        if not model.queue.dues:
            self._absent.drop(model)
            self._copies.drop(model)


def _saves(placement: Placement, ready_ns: int) -> bool:
    """Return whether weights that are there at an instant are in time for any waiting request."""
    dues = placement.model.queue.dues
    return bool(dues) and ready_ns + placement.times.ns[0] <= dues[-1]
