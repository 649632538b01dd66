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

from mainspring.scheduler.books import READY_SLACK_NS
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.policies.baseline_options import EdfOptions
from mainspring.scheduler.policies.lineup import enter, peek, strike, take
from mainspring.scheduler.policies.wishes import Wishes

if TYPE_CHECKING:
    from mainspring.scheduler.books import Books
    from mainspring.scheduler.estimates import InferTimes
    from mainspring.scheduler.mirror import Model, Placement, Worker
    from mainspring.scheduler.placing import LoadPlan
    from mainspring.scheduler.requests import DeadlineQueue, Request


class Edf(Policy):
    """The model whose head is due first, in the largest batch that is in time for it."""

    name: ClassVar[str] = "edf"
    Options: ClassVar[type[msgspec.Struct]] = EdfOptions

    def __init__(self, books: Books, options: msgspec.Struct) -> None:
        assert isinstance(options, EdfOptions)
        super().__init__(books, options)
        self._skips = options.skip_heads
        self._pads = bool(books.config.pad_batches)
        self._absent = Wishes(books, evicts=True)
        self._copies = Wishes(books, evicts=False)

    def queued(self, now_ns: int, request: Request) -> None:
        """Line the model up on its workers by its head, if that is new; ask for its LOAD."""
        model = request.model
        if request.due_ns == model.queue.dues[0]:
            for placement in model.usable.values():
                enter(placement, request.due_ns)
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
        """Return the batch of the model whose first request in time is due first."""
        seen: list[Placement] = []
        best: tuple[int, int] | None = None
        batch = None
        while (top := peek(worker)) is not None and (best is None or (top[0], top[1].model.number) < best):
            placement = take(worker)
            if not placement.usable or not placement.model.queue.dues:
                continue
            seen.append(placement)
            found = self._batch(now_ns, placement, available_ns)
            if found is not None:
                due_ns = found.requests[0].due_ns
                assert due_ns is not None
                rank = due_ns, placement.model.number
                if best is None or rank < best:
                    best, batch = rank, found
        for placement in seen:
            self._line_up(placement)
        return batch

    def next_load(self, now_ns: int) -> LoadPlan | None:
        """Return the LOAD of the model whose first request is due first, of those that no worker holds."""
        plan = self._absent.next_load(now_ns, _saves)
        return plan or self._copies.next_load(now_ns, _saves)

    def _batch(self, now_ns: int, placement: Placement, available_ns: int) -> Batch | None:
        """Return the model's batch on a worker; None if no request can make it, or its weights can't."""
        books, model, times = self.books, placement.model, placement.times
        queue, sizes = model.queue, times.sizes
        if placement.load_slot is not None:
            ready_ns = placement.ready_ns(now_ns)
            if ready_ns > max(available_ns, books.soonest_ns(now_ns) + READY_SLACK_NS):
                return None
        top = model.index_of[min(queue.rows, model.max_rows)]
        ends_ns = [
            books.begin_ns(now_ns, placement, index, available_ns) + times.ns[index]
            for index in range(top + 1)
        ]
        head = None if self._skips else _head(queue, times, ends_ns)
        for index in range(top, -1, -1):
            first = queue.first_feasible(ends_ns[index], sizes[index]) if head is None else head
            if first == len(queue) or queue.dues[first] < ends_ns[index]:
                continue
            if self._fills(queue, times, index, first):
                return Batch(placement, index, queue.fill(first, sizes[index]))
        return None

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
        """Have a placement come up by its head, a lower bound of when its first request in time is due."""
        if placement.usable and placement.model.queue.dues:
            enter(placement, placement.model.queue.dues[0])

    def _wish(self, model: Model) -> None:
        """Ask for a LOAD of a model where it is not held, by its head."""
        if not model.queue.dues:
            return
        if not model.usable:
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


def _head(queue: DeadlineQueue, times: InferTimes, ends_ns: list[int]) -> int:
    """Return the index of the first request that the smallest batch that holds it is in time for.

    It is the queue's length if there is none.
    """
    first = queue.first_feasible(ends_ns[0], times.sizes[-1])
    while first < len(queue) and queue.dues[first] < ends_ns[times.index_of[queue.rows_at(first)]]:
        first += 1
    return first


def _saves(placement: Placement, ready_ns: int) -> bool:
    """Return whether weights that are there at an instant are in time for any waiting request."""
    dues = placement.model.queue.dues
    return bool(dues) and ready_ns + placement.times.ns[0] <= dues[-1]
