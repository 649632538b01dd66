"""Which batch is worth an executor's time most: required start times, brought forward for density.

A batch of ``n`` requests that takes ``t`` and whose first is due at ``D`` must start by ``D - t``. Clockwork
takes the batch that must start first. Here each start is brought forward by ``scale * (ln(n / t) + boost)``:
a batch that serves twice as many requests with each millisecond goes before one that must start up to
``0.7 * scale`` earlier. The result is the batch's *rank*; the lowest goes first. With a scale of 0 this would
be Clockwork's order, with a very large one pure density; `SCALE_BATCHES` mean batches are between the two
where requests have to be dropped.

Where none are, everybody can be served in time, and the scale shrinks to a part of that (`CALM_SCALE`).

Ranks do not depend on when they are compared, so that each worker has one heap with an entry for each
waiting model it holds: by a lower bound of the model's rank, which assumes that all its requests can still
make it. A choice takes entries out until the best rank that was found is lower than all bounds left.
"""

from __future__ import annotations

import heapq
import math
from typing import Final, final

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.placements import Model, Placement, Worker
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.policies.clockwork import ready_by_ns
from mainspring.scheduler.policies.mainspring.constants import (
    BATCH_WEIGHT,
    CALM_SCALE,
    FIRST_BATCH_NS,
    FULL_SCALE_FROM,
    HEAP_SWEPT_FROM,
    RESCALED_FROM,
    SCALE_BATCHES,
    STALE_SHIFT,
)
from mainspring.scheduler.policies.notes import WorkerNote, model_note, worker_note
from mainspring.scheduler.policies.ready_queue import enter
from mainspring.scheduler.state import SchedulerState

_NONE_NS: Final = (1 << 62) - 1


@final
class Offsets:
    """What is derived from an executable's estimates (`InferTimes.note`), and from which."""

    __slots__ = ("by_count", "ns", "scale_ns")

    def __init__(self, scale_ns: float, ns: list[int], by_count: list[int]) -> None:
        self.scale_ns = scale_ns
        self.ns = ns
        """The estimates, as they were."""
        self.by_count = by_count
        """By number of requests, the last for all beyond."""


class Ranking:
    """The heaps of all workers, and the choice among their entries."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._pads = bool(state.config.pad_batches)
        self._batches = 0
        self._mean_ns = float(FIRST_BATCH_NS)
        self._mean_copies = 1.0
        self.scale_ns = CALM_SCALE * SCALE_BATCHES * FIRST_BATCH_NS

    def offer_all(self, model: Model) -> None:
        """Enter a model that got requests, or rose in rank, wherever it is."""
        if model.queue.dues:
            boost_ns = int(self.scale_ns * model_note(model).boost)
            for placement in model.usable.values():
                self._enter(placement, boost_ns)

    def offer(self, placement: Placement) -> None:
        """Enter a placement whose model has requests, unless a lower bound stands there."""
        model = placement.model
        if model.queue.dues:
            self._enter(placement, int(self.scale_ns * model_note(model).boost))

    def _enter(self, placement: Placement, boost_ns: int) -> None:
        """Enter a placement whose model has requests by a lower bound of its rank."""
        note, model = worker_note(placement.worker), placement.model
        if note.ranks_scale_ns != self.scale_ns:
            self._rank_again(note)
        offsets = placement.times.note
        if not isinstance(offsets, Offsets) or offsets.scale_ns != self.scale_ns:
            offsets = self._offsets(placement.times)
        dues, by_count = model.queue.dues, offsets.by_count
        count = len(dues)
        offset_ns = by_count[count] if count < len(by_count) else by_count[-1]
        bound_ns = dues[0] + offset_ns - boost_ns
        if enter(placement, bound_ns) and len(note.strategies) > note.swept_from:
            _sweep(note)

    def best(self, now_ns: int, worker: Worker, available_ns: int) -> Batch | None:
        """Return the batch of the lowest rank that an executor could begin at an instant, or None."""
        note = worker_note(worker)
        if note.ranks_scale_ns != self.scale_ns:
            self._rank_again(note)
        heap = note.strategies
        inputs_ns = worker.exec.inputs_at_ns(now_ns + self._state.ns.dispatch_delay, 0)
        best: Placement | None = None
        best_rank_ns = best_number = best_index = best_first = 0
        seen: list[Placement] = []
        while heap:
            key, number, placement = heap[0]
            if best is not None and (key > best_rank_ns or (key == best_rank_ns and number > best_number)):
                break
            heapq.heappop(heap)
            if placement.note != key:
                continue
            placement.note = None
            if not placement.usable:
                continue
            # A batch that can't be in time now may be after all: EXEC may be free earlier than predicted.
            seen.append(placement)
            begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns)
            if begin_ns is None:
                continue
            found = self._candidate(placement, begin_ns, inputs_ns)
            if found is None:
                continue
            rank_ns, index, first = found
            if best is None or rank_ns < best_rank_ns or (rank_ns == best_rank_ns and number < best_number):
                best, best_rank_ns, best_number = placement, rank_ns, number
                best_index, best_first = index, first
        for placement in seen:
            self.offer(placement)
        if best is None:
            return None
        requests = best.model.queue.fill(best_first, best.times.sizes[best_index])
        return Batch(best, best_index, requests)

    def ran(self, placement: Placement, duration_ns: int, dropped: float) -> None:
        """Enter a batch that was sent into the means, and put the scale right once they have moved, or the
        share of requests that are dropped.
        """
        self._batches += 1
        weight = max(BATCH_WEIGHT, 1 / self._batches)
        self._mean_ns += weight * (duration_ns - self._mean_ns)
        self._mean_copies += weight * (len(placement.model.usable) - self._mean_copies)
        turns = SCALE_BATCHES * (CALM_SCALE + (1.0 - CALM_SCALE) * min(1.0, dropped / FULL_SCALE_FROM))
        scale_ns = turns * self._mean_ns / math.sqrt(max(1.0, self._mean_copies))
        if abs(scale_ns - self.scale_ns) > RESCALED_FROM * self.scale_ns:
            self.scale_ns = scale_ns

    def learnt(self, times: InferTimes, index: int) -> None:
        """Drop offsets that a new estimate has made stale."""
        offsets = times.note
        if isinstance(offsets, Offsets):
            moved_ns = times.ns[index] - offsets.ns[index]
            if abs(moved_ns) > offsets.ns[index] >> STALE_SHIFT:
                times.note = None

    def _candidate(self, placement: Placement, begin_ns: int, inputs_ns: int) -> tuple[int, int, int] | None:
        """Return (rank, size's index, first request's index) of a placement's densest batch; None if none is.

        For each size the requests that can still make it count, from the first one on: one that can't is
        passed over. A size that they leave a smaller one's rows in is no candidate.
        """
        model, times = placement.model, placement.times
        queue, sizes, durations_ns, transfers_ns = model.queue, times.sizes, times.ns, times.transfer_ns
        rows = queue.rows if queue.rows < model.max_rows else model.max_rows
        requests = len(queue.dues)
        best_count, best_ns, best_index, best_first = 0, 1, 0, 0
        for index in range(model.index_of[rows], -1, -1):
            size, duration_ns = sizes[index], durations_ns[index]
            start_ns = max(begin_ns, inputs_ns + transfers_ns[index])
            first = queue.first_feasible(start_ns + duration_ns, size)
            if first == requests:
                continue
            filled = queue.rows_from(first, size)
            fits_smaller = index > 0 and queue.rows_at(first) <= sizes[index - 1]
            if fits_smaller and filled < size and (filled <= sizes[index - 1] or not self._pads):
                continue
            count = filled if queue.rows == requests else len(queue.fill(first, size))
            if count * best_ns > best_count * duration_ns:
                best_count, best_ns, best_index, best_first = count, duration_ns, index, first
        if not best_count:
            return None
        density_ns = int(self.scale_ns * math.log(best_count / best_ns))
        rank_ns = queue.dues[best_first] - best_ns - density_ns - int(self.scale_ns * model_note(model).boost)
        return rank_ns, best_index, best_first

    def _offsets(self, times: InferTimes) -> Offsets:
        """Return what a number of waiting requests brings their first one's rank forward by at most."""
        scale_ns, sizes, durations_ns = self.scale_ns, times.sizes, times.ns
        by_count = [_NONE_NS]
        for count in range(1, sizes[-1] + 1):
            least_ns = _NONE_NS
            for size, duration_ns in zip(sizes, durations_ns, strict=True):
                density = math.log(min(size, count) / duration_ns)
                least_ns = min(least_ns, -duration_ns - int(scale_ns * density))
            by_count.append(least_ns)
        times.note = offsets = Offsets(scale_ns, list(durations_ns), by_count)
        return offsets

    def _rank_again(self, note: WorkerNote) -> None:
        """Rank a worker's entries by the scale as it is now."""
        note.ranks_scale_ns = self.scale_ns
        entries, note.strategies = note.strategies, []
        for key, _, placement in entries:
            if placement.note == key:
                placement.note = None
                self.offer(placement)


def _sweep(note: WorkerNote) -> None:
    """Drop the entries that others have replaced."""
    note.strategies = [entry for entry in note.strategies if entry[2].note == entry[0]]
    heapq.heapify(note.strategies)
    note.swept_from = 2 * len(note.strategies) + HEAP_SWEPT_FROM
