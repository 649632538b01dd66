"""The choice of the batch that is worth an executor's time most: required start times, brought forward for
density.

A batch of ``n`` requests that takes ``t`` and whose first is due at ``D`` must start by ``D - t``. Clockwork
takes the batch that must start first. Here each start is brought forward by ``scale * (ln(n / t) + boost)``:
a batch that serves twice as many requests with each millisecond goes before one that must start up to
``0.7 * scale`` earlier. The result is the batch's *rank*; the lowest goes first. With a scale of 0 this would
be Clockwork's order, with a very large one pure density; `SCALE_BATCHES` mean batches are between the two
where requests have to be dropped.

Where none are, everybody can be served in time, and the scale shrinks to a part of that (`CALM_SCALE`).
Which of its requests a model runs is decided by density alone while they are alike, and by rank otherwise.

Ranks do not depend on when they are compared: they are the keys of the ready queue (`ReadyQueuePolicy`). The
lower bound of a model's rank assumes that all its requests can still make it.
"""

from __future__ import annotations

import math
from typing import Final, cast, final

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.requests import Request
from mainspring.scheduler.policies.batching import densest_batch, largest_index, not_lost, soonest_batch
from mainspring.scheduler.policies.mainspring.chances import likeliest_batch
from mainspring.scheduler.policies.mainspring.constants import (
    BATCH_WEIGHT,
    CALM_SCALE,
    FIRST_BATCH_NS,
    FULL_SCALE_FROM,
    RESCALED_FROM,
    SCALE_BATCHES,
    STALE_SHIFT,
    UNLIKE_FULL_SCALE_FROM,
    UNLIKE_REQUESTS,
    UNLIKE_ROWS_BATCHES,
    UNLIKE_SHIFT,
)
from mainspring.scheduler.policies.notes import Ready, ReadyHeap, model_note
from mainspring.scheduler.policies.ready_queue import enter, enter_copies

_NONE_NS: Final = (1 << 62) - 1


@final
class Offsets:
    """The offsets derived from an executable's estimates (`InferTimes.note`), and the estimates
    themselves."""

    __slots__ = ("by_count", "ns", "of_singles", "scale_ns")

    def __init__(self, scale_ns: float, ns: list[int], by_count: list[int], of_singles: list[int]) -> None:
        self.scale_ns = scale_ns
        self.ns = ns
        """The estimates, as they were."""
        self.by_count = by_count
        """Offsets by number of requests, the last for all beyond."""
        self.of_singles = of_singles
        """The same offsets if each request has one row: then none needs a larger size than that of their
        number."""


class Ranking:
    """The scale, and the ranks that follow from it."""

    def __init__(self, pads: bool) -> None:
        """``pads`` says whether batches may have empty rows."""
        self._pads = pads
        self._batches = 0
        self._mean_ns = float(FIRST_BATCH_NS)
        self._mean_copies = 1.0
        self._unlike = self._unlike_rows = 0.0
        """The part of the batches whose models' requests are unlike, and of those unlike in rows."""
        self.calm = True
        """True if hardly any request is dropped."""
        self.scale_ns = CALM_SCALE * SCALE_BATCHES * FIRST_BATCH_NS

    def bound_ns(self, placement: Placement) -> int:
        """Return a lower bound of the rank of a model with waiting requests on a worker."""
        offsets = placement.times.note
        if not isinstance(offsets, Offsets) or offsets.scale_ns != self.scale_ns:
            offsets = self._offsets(placement.times)
        queue = placement.model.queue
        dues = queue.dues
        count = len(dues)
        by_count = offsets.of_singles if queue.rows == count else offsets.by_count
        offset_ns = by_count[count] if count < len(by_count) else by_count[-1]
        return dues[0] + offset_ns - self._boost_ns(placement.model)

    def candidate(self, placement: Placement, begin_ns: int, inputs_ns: int) -> tuple[int, int, int] | None:
        """Return (rank, size's index, first request's index) of a placement's batch, or None: the densest,
        or where its model's requests are unlike that of the lowest rank."""
        queue, times = placement.model.queue, placement.times
        top = largest_index(placement.model)
        if model_note(placement.model).unlike:
            found = soonest_batch(queue, times, top, begin_ns, inputs_ns, self._pads, self.scale_ns)
        else:
            found = densest_batch(queue, times, top, begin_ns, inputs_ns, self._pads)
        if found is None:
            return None
        if found[1] and queue.rows != len(queue.dues):
            found = not_lost(queue, times, top, begin_ns, inputs_ns, found, self.calm)
        index, first, count = found
        duration_ns = times.ns[index]
        density_ns = int(self.scale_ns * math.log(count / duration_ns))
        return queue.dues[first] - duration_ns - density_ns - self._boost_ns(placement.model), index, first

    def likeliest(self, placement: Placement, begin_ns: int, inputs_ns: int) -> tuple[int, int, int] | None:
        """Return (rank, size's index, first request's index) of the batch that most is to be expected of, or
        None; for an erratic model."""
        model = placement.model
        found = likeliest_batch(
            model.queue, placement.times, largest_index(model), begin_ns, inputs_ns, self.scale_ns
        )
        return None if found is None else (found[0] - self._boost_ns(model), found[1], found[2])

    def asked(self, request: Request) -> None:
        """Note whether a model's requests are unlike: of other rows, or given another time, than those
        before them."""
        due_ns, note = request.due_ns, model_note(request.model)
        if due_ns is None:
            return
        slack_ns, known_ns = due_ns - request.arrived_ns, note.slack_ns
        alike_ns = known_ns >> UNLIKE_SHIFT
        if note.unlike_rows:
            note.unlike_rows -= 1
        if request.rows != note.rows or not -alike_ns <= slack_ns - known_ns <= alike_ns:
            note.unlike = UNLIKE_REQUESTS if note.rows else 0
            if request.rows != note.rows:
                note.unlike_rows = note.unlike
            note.rows, note.slack_ns = request.rows, slack_ns
        elif note.unlike:
            note.unlike -= 1

    def rank_again(self, heap: ReadyHeap) -> None:
        """Rank a heap's entries by the scale as it is now."""
        if heap.scale_ns == self.scale_ns:
            return
        heap.scale_ns = self.scale_ns
        entries, heap.entries = heap.entries, []
        for each in entries:
            entry = cast(Ready, each)
            what = entry.what
            if what.note != entry.key:
                continue
            what.note = None
            if not what.model.queue.dues:
                continue
            if isinstance(what, Placement):
                enter(what, self.bound_ns(what))
            else:
                enter_copies(what, self.bound_ns(what.like))

    def ran(self, placement: Placement, duration_ns: int, dropped: float) -> None:
        """Enter a batch that was sent into the means, and put the scale right once they have moved, or the
        share of requests that are dropped.
        """
        self._batches += 1
        weight = max(BATCH_WEIGHT, 1 / self._batches)
        self._mean_ns += weight * (duration_ns - self._mean_ns)
        self._mean_copies += weight * (len(placement.model.usable) - self._mean_copies)
        self.calm = dropped < FULL_SCALE_FROM
        note = model_note(placement.model)
        self._unlike += weight * ((1.0 if note.unlike else 0.0) - self._unlike)
        self._unlike_rows += weight * ((1.0 if note.unlike_rows else 0.0) - self._unlike_rows)
        full_from = FULL_SCALE_FROM + (UNLIKE_FULL_SCALE_FROM - FULL_SCALE_FROM) * self._unlike
        turns = SCALE_BATCHES * (CALM_SCALE + (1.0 - CALM_SCALE) * min(1.0, dropped / full_from))
        batches = turns / math.sqrt(max(1.0, self._mean_copies))
        batches -= max(0.0, batches - UNLIKE_ROWS_BATCHES) * self._unlike_rows
        scale_ns = batches * self._mean_ns
        if abs(scale_ns - self.scale_ns) > RESCALED_FROM * self.scale_ns:
            self.scale_ns = scale_ns

    def learnt(self, times: InferTimes, index: int) -> None:
        """Drop offsets that a new estimate has made stale."""
        offsets = times.note
        if isinstance(offsets, Offsets):
            moved_ns = times.ns[index] - offsets.ns[index]
            if abs(moved_ns) > offsets.ns[index] >> STALE_SHIFT:
                times.note = None

    def _boost_ns(self, model: Model) -> int:
        """Return how much earlier a model's batches rank than their density has them."""
        boost = model_note(model).boost
        return int(self.scale_ns * boost) if boost else 0

    def _offsets(self, times: InferTimes) -> Offsets:
        """Return what a number of waiting requests brings their first one's rank forward by at most."""
        scale_ns, sizes, durations_ns = self.scale_ns, times.sizes, times.ns
        by_count, of_singles = [_NONE_NS], [_NONE_NS]
        for count in range(1, sizes[-1] + 1):
            least_ns = least_single_ns = _NONE_NS
            for index, duration_ns in enumerate(durations_ns):
                density = math.log(min(sizes[index], count) / duration_ns)
                least_ns = min(least_ns, -duration_ns - int(scale_ns * density))
                if index <= times.index_of[count]:
                    least_single_ns = least_ns
            by_count.append(least_ns)
            of_singles.append(least_single_ns)
        times.note = offsets = Offsets(scale_ns, list(durations_ns), by_count, of_singles)
        return offsets
