"""Earliest deadline first, with batching.

The order of Liu and Layland (JACM 1973) over models: a device that is free runs the model whose first
request that can still make it is due first, in the largest batch that ends before that request is due.
Requests that can't make it any more are skipped, and expire. Such a request at the head of a busy queue is
about to be too late for all but the smallest batch, so the batches get small just when larger ones are
needed; ``skip_heads`` lets a batch begin at the first request that its size is still in time for.

*LOAD.* The model whose first request is due first among those that no worker holds and that a LOAD begun now
can still save, over the least recently used; then further copies, into free pages (`OrderedLoads`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.baselines.ordered_loads import OrderedLoadsPolicy
from mainspring.scheduler.policies.batching import largest_batch, largest_index
from mainspring.scheduler.policies.options import EdfOptions
from mainspring.scheduler.policies.ready_queue import ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.estimates import InferTimes
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import DeadlineQueue, Request
    from mainspring.scheduler.state import SchedulerState


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(OrderedLoadsPolicy):
    """The model whose head is due first, in the largest batch that is in time for it."""

    name: ClassVar[str] = "edf"
    Options: ClassVar[type[msgspec.Struct]] = EdfOptions

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        assert isinstance(options, EdfOptions)
        super().__init__(state, options, keeps_keys=True, shares=True)
        self._skips = options.skip_heads
        self._pads = bool(state.config.pad_batches)

    def queued(self, now_ns: int, request: Request) -> None:
        """Enter the model on its workers where the request is due before what it is entered by."""
        model, due_ns = request.model, request.due_ns
        assert due_ns is not None
        self.enter_all(model, due_ns)
        if due_ns == model.queue.dues[0]:
            self.want_load(model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Have the model not loaded if no request waits for it any more."""
        if not request.model.queue.dues:
            self.drop_load(request.model)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Have the model not loaded if no request waits for it any more."""
        if not batch.placement.model.queue.dues:
            self.drop_load(batch.placement.model)

    def load_key(self, model: Model) -> int | None:
        """Return when the first request is due."""
        return model.queue.dues[0] if model.queue.dues else None

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
        least, top = times.index_of[queue.rows_at(head)], largest_index(placement.model)
        found = largest_batch(queue, times, top, begin_ns, inputs_ns, self._pads, -1 if self._skips else head)
        if found is None or found[0] <= least:
            return queue.dues[head], least, head
        return queue.dues[head], found[0], found[1]

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
