"""The division of a model's requests among kinds of devices of unlike speed: each does what slower ones
can't.

Requests of many rows, and those that have waited, are in time on fast devices alone. So a fast device runs
the first of these, whatever batch would be denser, while hardly any request is dropped; and what an idle
slower one can end in time it leaves to that, where most devices are busy. Where most are idle the fastest
runs it, since another fast one will be idle for what needs it. Clusters of one kind never come here.
"""

from __future__ import annotations

from mainspring.cluster.placements import Placement
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.batching import largest_index
from mainspring.scheduler.policies.mainspring.constants import (
    LEAVES_FROM,
    LEFT_TO_LOOKED_AT,
    QUEUE_LOOKED_AT,
    SHARES_FROM,
)
from mainspring.scheduler.state import SchedulerState


class HeterogeneousKinds:
    """Says what goes before a batch, and to whom one is left."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._at_ns = -1
        self._left: dict[int, int] = {}
        """The workers, as a set, to which each worker, by its number, has left a batch at the instant of
        ``_at_ns``: to each only once, so that one that does not take it keeps it from nobody."""

    def in_order(self, now_ns: int, available_ns: int, batch: Batch) -> Batch | None:
        """Return the batch to run in the place of the densest one while hardly any is dropped, or None.

        It begins with the first request that needs this kind of device: no slower kind would end it in time
        that began it at once. There is none on the slowest kind.
        """
        placement = batch.placement
        model, queue, times = placement.model, placement.model.queue, placement.times
        if queue.rows == len(queue.dues):
            return None
        slower = [
            each
            for kind, each in model.infer_times.items()
            if kind != placement.worker.kind and each.ns[-1] > times.ns[-1]
        ]
        if not slower:
            return None
        soonest_ns = self._state.soonest_ns(now_ns)
        ends_ns = self._ends_ns(now_ns, available_ns, placement)
        for place, due_ns in enumerate(queue.dues[:QUEUE_LOOKED_AT]):
            index = times.index_of[queue.rows_at(place)]
            if due_ns < ends_ns[index]:
                continue
            if all(due_ns < soonest_ns + each.ns[index] for each in slower):
                return self._from(placement, place, ends_ns)
        return None

    def _ends_ns(self, now_ns: int, available_ns: int, placement: Placement) -> list[int]:
        """Return when a batch of each size would end that is sent now.

        Each waits for its own inputs: one size's may be estimated to come later than a larger one's.
        """
        durations_ns, state = placement.times.ns, self._state
        return [
            state.begin_ns(now_ns, placement, index, available_ns) + durations_ns[index]
            for index in range(len(durations_ns))
        ]

    def _from(self, placement: Placement, head: int, ends_ns: list[int]) -> Batch:
        """Return the densest batch that begins with a request, of its own size unless it shares well."""
        queue, times = placement.model.queue, placement.times
        due_ns = queue.dues[head]
        own = times.index_of[queue.rows_at(head)]
        best = Batch(placement, own, queue.fill(head, times.sizes[own]))
        most = SHARES_FROM
        for index in range(own + 1, largest_index(placement.model) + 1):
            if ends_ns[index] > due_ns:
                continue
            requests = queue.fill(head, times.sizes[index])
            saved = sum([times.ns[times.index_of[each.rows]] for each in requests]) / times.ns[index]
            if saved > most:
                most, best = saved, Batch(placement, index, requests)
        return best

    def left_to(self, now_ns: int, batch: Batch) -> Worker | None:
        """Return the idle worker of the slowest kind that ends a batch in time, if that is slower; else None.

        It is asked first, and then the one that left it.
        """
        placement = batch.placement
        model, own = placement.model, placement.worker
        if now_ns != self._at_ns:
            self._at_ns = now_ns
            self._left.clear()
        state, left = self._state, self._left.get(own.number, 0)
        idle = model.held & state.idle_workers.idle & ~own.bit
        if idle.bit_count() > (1.0 - LEAVES_FROM) * model.held.bit_count():
            return None
        found: Worker | None = None
        index = batch.size_index
        most_ns = placement.times.ns[index]
        due_ns = min([request.due_ns for request in batch.requests if request.due_ns is not None])
        for kind, times in model.infer_times.items():
            some = idle & ~left & state.cluster.of_kind.get(kind, 0)
            if not some or kind == own.kind or times.ns[index] <= most_ns:
                continue
            worker = self._first(now_ns, placement, some, index, due_ns)
            if worker is not None:
                found, most_ns = worker, times.ns[index]
        if found is not None:
            self._left[own.number] = left | found.bit
            state.wants(found)
            state.wants(own)
        return found

    def _first(self, now_ns: int, like: Placement, some: int, index: int, due_ns: int) -> Worker | None:
        """Return the first of a set of workers that could end a batch by an instant; None if none could."""
        state = self._state
        for _ in range(LEFT_TO_LOOKED_AT):
            if not some:
                return None
            worker = state.cluster.worker_bits.first_of(some)
            some &= ~worker.bit
            placement = like.model.usable[worker.name]
            available_ns = worker.exec.available_ns(now_ns, state.soonest_ns(now_ns))
            begin_ns = state.begin_ns(now_ns, placement, index, available_ns)
            if worker.open and begin_ns + placement.times.ns[index] <= due_ns:
                return worker
        return None
