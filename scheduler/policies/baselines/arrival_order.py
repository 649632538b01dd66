"""Queues in order of arrival: the base of the policies that look at no deadline.

Each model has one queue. Its batch is ready once it is full, or once its first request has waited for as
long as batches are held for; of the models that a worker holds, the one whose batch was ready first runs
first, on whichever worker is free first. Nothing is refused because it can't be in time, and what has
become late is run all the same. Models are loaded on demand in the order of their oldest request's arrival
(`OrderedLoads`), over the least recently used. Requests without a deadline stay with the core, which runs
them in idle time.

A batch that no compiled size fits exactly is padded to the next larger one.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.cluster.requests import Request
from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.baselines.ordered_loads import OrderedLoadsPolicy
from mainspring.scheduler.policies.notes import Copies, model_note
from mainspring.scheduler.policies.ready_queue import enter, enter_copies, ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.models import Model
    from mainspring.cluster.placements import Placement
    from mainspring.cluster.requests import Request
    from mainspring.scheduler.state import SchedulerState


BEHIND_NS = 1 << 61
"""Added to the rank of a request that was put behind all others: later than every arrival."""


class FifoQueue:
    """Requests by rank: the instant of their arrival, later by `BEHIND_NS` for those behind all others."""

    __slots__ = ("_items", "_ranks", "rows")

    def __init__(self) -> None:
        self._items: list[Request] = []
        self._ranks: list[int] = []
        self.rows = 0
        """Rows of all requests."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def head(self) -> Request:
        """The request that is the next; the queue must not be empty."""
        return self._items[0]

    @property
    def head_rank_ns(self) -> int:
        """The rank of the request that is the next; the queue must not be empty."""
        return self._ranks[0]

    def add(self, request: Request) -> None:
        """Put a request into its place: the last, unless it was dispatched before in vain."""
        self._insert(request.arrived_ns, request)

    def put_behind(self) -> None:
        """Put the first request behind all those that are not behind yet; the queue must not be empty."""
        request = self._items[0]
        self._delete(0)
        self._insert(request.arrived_ns + BEHIND_NS, request)

    def remove(self, request: Request) -> None:
        """Take a request out; raise KeyError if it is not queued."""
        items = self._items
        self._delete(0 if items and items[0] is request else self._index(request))

    def first(self, rows: int) -> list[Request]:
        """Return the requests at the front that fit ``rows`` together, and the first in any case."""
        if self.rows == len(self._items):
            return self._items[: max(rows, 1)]
        taken: list[Request] = []
        for request in self._items:
            rows -= request.rows
            if rows < 0 and taken:
                break
            taken.append(request)
        return taken

    def filled_ns(self, rows: int) -> int:
        """Return the rank of the request with which the queue came to ``rows``; it must have as many."""
        if self.rows == len(self._items):
            return self._ranks[rows - 1]
        for rank, request in zip(self._ranks, self._items, strict=True):
            rows -= request.rows
            if rows <= 0:
                return rank
        raise ValueError(f"{self.rows} rows are queued, too few by {rows}")

    def _insert(self, rank: int, request: Request) -> None:
        """Put a request where its rank, and then its id, has it."""
        ranks, items = self._ranks, self._items
        index = bisect_right(ranks, rank)
        while index and ranks[index - 1] == rank and items[index - 1].id > request.id:
            index -= 1
        ranks.insert(index, rank)
        items.insert(index, request)
        self.rows += request.rows

    def _delete(self, index: int) -> None:
        self.rows -= self._items[index].rows
        del self._items[index], self._ranks[index]

    def _index(self, request: Request) -> int:
        """Return where a request stands; raise KeyError if it is not queued."""
        for rank in (request.arrived_ns, request.arrived_ns + BEHIND_NS):
            index = bisect_left(self._ranks, rank)
            while index < len(self._ranks) and self._ranks[index] == rank:
                if self._items[index] is request:
                    return index
                index += 1
        raise KeyError(request.id)


@mypyc_attr(allow_interpreted_subclasses=True)
class ArrivalOrder(OrderedLoadsPolicy):
    """Batches in order of arrival, by what `full_rows` and `batch_rows` say of their size."""

    refuses: ClassVar[bool] = False
    serves_late: ClassVar[bool] = True
    lookahead_ms: ClassVar[float] = 1.0

    def __init__(
        self, state: SchedulerState, options: msgspec.Struct, hold_ms: float, shares: bool = False
    ) -> None:
        """``hold_ms`` is how long a batch that is not full waits for more requests; ``shares`` as
        `ReadyQueuePolicy`."""
        super().__init__(state, options, shares=shares)
        self._hold_ns = milliseconds(hold_ms)
        self._queues: dict[int, FifoQueue] = {}
        """The queue of each model that requests wait for, by number."""

    @abstractmethod
    def full_rows(self, placement: Placement) -> int:
        """Return the number of waiting rows from which on a batch is not held any longer."""

    @abstractmethod
    def batch_rows(self, placement: Placement, waiting: int) -> int:
        """Return how many rows a batch may have while ``waiting`` rows wait."""

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
        if first or self._hold_ns:
            self.offer_all(model)
        if first:
            self.want_load(model)

    def unqueued(self, now_ns: int, request: Request) -> None:
        """Take the request out of the queue."""
        self._remove(request)

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Take the batch's requests out of the queue, and line the rest up."""
        for request in batch.requests:
            self._remove(request)
        self.offer_again(batch.placement)

    def offer_again(self, placement: Placement) -> None:
        """Enter a placement, or the model if it is wide, by what waits now."""
        copies = model_note(placement.model).copies
        if copies is None:
            self.offer(placement)
        else:
            self.offer_copies(copies[placement.worker.kind])

    def offer_copies(self, copies: Copies) -> None:
        """Enter a wide model by when its batch is ready, if requests wait."""
        if copies.model.number in self._queues:
            enter_copies(copies, self.key(copies.like))

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

    def load_key(self, model: Model) -> int | None:
        """Return when the oldest request came."""
        queue = self._queues.get(model.number)
        return None if queue is None else queue.head_rank_ns

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
            self.drop_load(request.model)
