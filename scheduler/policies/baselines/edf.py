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

from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.baselines.ordered_loads import OrderedLoads
from mainspring.scheduler.policies.options import EdfOptions
from mainspring.scheduler.policies.ready_queue import enter, peek, strike, take
from mainspring.scheduler.state import READY_SLACK_NS

if TYPE_CHECKING:
    from mainspring.cluster.estimates import InferTimes
    from mainspring.cluster.placements import Model, Placement, Worker
    from mainspring.cluster.requests import DeadlineQueue, Request
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(Policy):
    """The model whose head is due first, in the largest batch that is in time for it."""

    name: ClassVar[str] = "edf"
    Options: ClassVar[type[msgspec.Struct]] = EdfOptions

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        assert isinstance(options, EdfOptions)
        super().__init__(state, options)
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
        """Line the model up on the worker, or strike it there; ask for its LOAD."""
        if placement.usable:
            self._line_up(placement)
        else:
            strike(placement)
        self._wish(placement.model)

    def worker_joined(self, now_ns: int, worker: Worker) -> None:
        """Ask for what waits: this worker may load it."""
        for placement in worker.placements.values():
            self._wish(placement.model)

    def worker_left(self, now_ns: int, worker: Worker) -> None:
        """Ask for what only this worker held."""
        for placement in worker.placements.values():
            self._wish(placement.model)

    def next_batch(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the batch of the model whose first request in time is due first.

        A model is lined up by the request that was the first in time when it last came up: a lower bound, as
        EXEC is hardly ever available sooner than it was.
        """
        passed_over: list[Placement] = []
        batch = None
        while batch is None and (top := peek(worker)) is not None:
            key, placement = top
            queue = placement.model.queue
            if not placement.usable or not queue.dues:
                take(worker)
                continue
            head = self._head(now_ns, placement, available_ns)
            if head is None:
                passed_over.append(take(worker))
            elif queue.dues[head] > key:
                enter(take(worker), queue.dues[head])
            else:
                batch = self._batch(now_ns, placement, available_ns, head)
        for placement in passed_over:
            self._line_up(placement)
        return batch

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the model whose first request is due first, of those that no worker holds."""
        plan = self._absent.next_load(now_ns, _saves)
        return plan or self._copies.next_load(now_ns, _saves)

    def _head(self, now_ns: int, placement: Placement, available_ns: int) -> int | None:
        """Return the index of the first request that the smallest batch that holds it is in time for.

        None if there is none, or the weights are not about to be there.
        """
        state, queue, times = self.state, placement.model.queue, placement.times
        if placement.load_slot is not None:
            ready_ns = placement.ready_ns(now_ns)
            if ready_ns > max(available_ns, state.soonest_ns(now_ns) + READY_SLACK_NS):
                return None
        end_ns = state.begin_ns(now_ns, placement, 0, available_ns) + times.ns[0]
        first = queue.first_feasible(end_ns, times.sizes[-1])
        if queue.rows != len(queue.dues):
            while first < len(queue.dues):
                index = times.index_of[queue.rows_at(first)]
                end_ns = state.begin_ns(now_ns, placement, index, available_ns) + times.ns[index]
                if queue.dues[first] >= end_ns:
                    break
                first += 1
        return first if first < len(queue.dues) else None

    def _batch(self, now_ns: int, placement: Placement, available_ns: int, head: int) -> Batch:
        """Return the largest batch that is in time for the head, or for the request that it begins at."""
        queue, times = placement.model.queue, placement.times
        sizes = times.sizes
        least = times.index_of[queue.rows_at(head)]
        for index in range(placement.model.index_of[min(queue.rows, sizes[-1])], least, -1):
            end_ns = self.state.begin_ns(now_ns, placement, index, available_ns) + times.ns[index]
            first = queue.first_feasible(end_ns, sizes[index]) if self._skips else head
            in_time = first < len(queue.dues) and queue.dues[first] >= end_ns
            if in_time and self._fills(queue, times, index, first):
                return Batch(placement, index, queue.fill(first, sizes[index]))
        return Batch(placement, least, queue.fill(head, sizes[least]))

    def _fills(self, queue: DeadlineQueue, times: InferTimes, index: int, first: int) -> bool:
        """Return whether the requests from one on fill a batch, or are better padded than run in two."""
        size, below = times.sizes[index], times.sizes[index - 1] if index else 0
        rows = queue.rows_from(first, size)
        if rows == size or index == 0 or queue.rows_at(first) > below:
            return True
        return (
            self._pads
            and rows > below
            and times.ns[index] < times.ns[index - 1] + times.for_rows(rows - below)
        )

    def _line_up(self, placement: Placement) -> None:
        """Have a placement come up by what is due first at all."""
        if placement.usable and placement.model.queue.dues:
            enter(placement, placement.model.queue.dues[0])

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
