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

A model that is dropped too often has a `boost`: `Fairness` keeps a floor under each model's share of answers.
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
    ANSWERED_WEIGHT,
    BATCH_WEIGHT,
    CALM_SCALE,
    FIRST_BATCH_NS,
    FULL_SCALE_FROM,
    HIGHEST_PRICE,
    LOWEST_FLOOR,
    PRICE_STEP,
    RESCALED_FROM,
    SCALE_BATCHES,
    STALE_SHIFT,
    TURN_BOOST,
    TURN_WITHIN_NS,
    UNBOOSTED_PRICE,
    UNLIKE_FULL_SCALE_FROM,
    UNLIKE_REQUESTS,
    UNLIKE_ROWS_BATCHES,
    UNLIKE_SHIFT,
)
from mainspring.scheduler.policies.notes import ModelNote, Ready, ReadyHeap, model_note
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

    def asked(self, request: Request, note: ModelNote) -> None:
        """Note whether a model's requests are unlike: of other rows, or given another time, than those
        before them; ``note`` is that of its model."""
        due_ns = request.due_ns
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


def floor_of(answered: float, fairness: float) -> float:
    """Return the least share of its requests that a model should have answered if all together have a share.

    Below 0 where nothing need be. ``fairness`` is greater than 0.
    """
    return max(1.0 - (1.0 - answered) / fairness, fairness * answered)


def set_boost(note: ModelNote) -> None:
    """Set a model's boost to what follows from its weight, its turn and its price."""
    note.boost = note.weight_nats + note.turn + max(0.0, note.price - UNBOOSTED_PRICE)


class Fairness:
    """Keeps a floor under each model's share of answers, by the models' boosts (`ModelNote.boost`).

    A policy that maximises the number of answers drops the models whose requests take longest, all of them;
    even among models that are alike it drops the same ones repeatedly where clients retry at once. The floor
    prevents that. With a share ``s`` of all requests answered it is ``1 - (1 - s) / fairness``: no model
    misses more than ``1 / fairness`` times as large a share of its requests as all models together do. Where
    many requests are dropped this asks for little or nothing; then the floor is ``fairness * s``: no model's
    share of answers is less than that part of the share of all.

    Each model has a price: a missed request raises it and an answered one lowers it, so that both balance at
    the floor (a subgradient step on the dual of "most answers, with a floor for each model"). The price
    boosts the model's rank. It is 0 for a model above its floor, and for all models while nothing is dropped.
    The lower the floor, the more misses come to one answer: steps up are smaller then and steps down larger,
    so that a price settles within the same number of batches at any floor.

    A low floor costs little, but asks for no answer to a model of few requests, whose price would come too
    late. So a model that has missed requests since its last answer gets a *turn* as well: a boost that grows
    with that time, to at most `TURN_BOOST`. Turns come to those who have waited longest, where that costs
    least: among batches that are nearly as dense, or on devices that have nothing denser to run or to load.
    """

    def __init__(self, fairness: float) -> None:
        """``fairness`` from 0, no floor, to 1, equal shares for all."""
        self._fairness = fairness
        self._answered = 1.0
        self._floor = 1.0 if fairness else 0.0
        self._up = self._down = 0.0
        self._update()

    @property
    def floor(self) -> float:
        """The share of its requests that every model should have answered."""
        return self._floor

    @property
    def dropped(self) -> float:
        """The share of all requests that were dropped lately."""
        return 1.0 - self._answered

    def answered(self, model: Model, requests: int) -> None:
        """Enter requests that were dispatched."""
        self._answered += (1.0 - self._answered) * min(1.0, ANSWERED_WEIGHT * requests)
        self._update()
        note = model_note(model)
        note.starved_ns = 0
        if note.turn or note.price:
            note.turn = 0.0
            note.price = max(0.0, note.price - self._down * requests)
            set_boost(note)

    def asked(self, now_ns: int, note: ModelNote) -> None:
        """Boost a model that gets a request by the time for which it was starved; ``note`` is its own."""
        if note.starved_ns:
            waited = (now_ns - note.starved_ns) / TURN_WITHIN_NS
            note.turn = TURN_BOOST * min(1.0, waited)
            set_boost(note)

    def starved(self, now_ns: int, model: Model) -> None:
        """Enter that a model was not answered, whatever the reason."""
        note = model_note(model)
        if self._fairness and not note.starved_ns:
            note.starved_ns = now_ns

    def missed(self, now_ns: int, model: Model) -> bool:
        """Enter a request that was dropped; return whether its model's boost rose."""
        self.starved(now_ns, model)
        self._answered -= self._answered * ANSWERED_WEIGHT
        self._update()
        note = model_note(model)
        before = note.boost
        note.price = min(HIGHEST_PRICE, note.price + self._up)
        set_boost(note)
        return note.boost > before

    def _update(self) -> None:
        """Set the floor, and the steps of prices that balance at it."""
        fairness, answered = self._fairness, self._answered
        if not fairness:
            return
        self._floor = floor = floor_of(answered, fairness)
        if floor < LOWEST_FLOOR:
            self._up = self._down = 0.0
            return
        missed_to_answered = (1.0 - floor) / floor
        self._up = PRICE_STEP if missed_to_answered < 1.0 else PRICE_STEP / math.sqrt(missed_to_answered)
        self._down = self._up * missed_to_answered
