"""Requests are refused as soon as it is improbable that they are served: a refusal in time can be acted on.

A request that waits would be refused anyway once no batch could serve it before its deadline. Under overload
that is just before the deadline, and it was to be foreseen. So while requests are refused, each that waits is
looked at `LOOKS` times: its batch could begin once the work of models of higher rank (`WorkAhead`), and of
its own model's before it, is done. If it would be late then, it is refused. When it is looked at follows from
its id, so that of requests that come at once, with one deadline, each is looked at when it is known which of
the others were refused.

More will come that ranks higher, and some of what does will be refused itself or run in fewer batches. So the
work counts times a margin, which each model learns, and a part of it all models together: of the requests
that it would refuse one in `SAMPLED` is kept, whichever it is, and served or refused at last like any other.
If it is served, refusing it would have been wrong, which lowers the margin; if it is not, it would have been
right, which raises it. The share of wrong ones settles at `SchedulerConfig.refuse_wrongly`. To judge by the
model's next batch alone would be too kind: a refusal leaves that batch smaller, so that it ranks later, and
comes too late.

The work before a rank is a sum over ranks, kept as queues change. Ranks are instants, as policies order by
them (`Policy.standing_ns`). They fall into slots of equal width on a ring that moves on with the time, its
middle where ranks have lately been. A Fenwick tree over the slots gives the work before a rank, and takes a
change, in a number of steps that grows with the logarithm of the slots, whatever waits.
"""

from __future__ import annotations

import math
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.requests import Place, Request
from mainspring.messages.actions import Ahead
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.state import SchedulerState

BITS: Final = 10
SLOTS: Final = 1 << BITS
SLACKS: Final = 8
"""Span of the slots, in slacks of the requests that wait; what ranks beyond counts as at the ends."""
SPARE: Final = SLOTS // 8
"""Slots at either end that nothing is entered in: the ring moves on by as many while a slack passes, within
which a model is entered again, for its requests leave."""
MIDDLE_WEIGHT: Final = 1 / 64
"""Weight of one rank in the position of the middle."""
FINEST_NS: Final = 1 << 14
COARSEST_NS: Final = 1 << 36


class WorkAhead:
    """Work by rank, one entry a model."""

    __slots__ = ("_entries", "_middle_ns", "_tree", "total_ns", "width_ns")

    def __init__(self) -> None:
        self.width_ns = FINEST_NS
        """Width of a slot."""
        self.total_ns = 0
        """The work of all models."""
        self._middle_ns: float = 0.0
        """Position of the middle, from the present instant on."""
        self._entries: dict[int, tuple[int, int, int]] = {}
        """(slot on a ring without end, work, rank) of each model, by number."""
        self._tree: list[int] = [0] * (SLOTS + 1)

    def __len__(self) -> int:
        return len(self._entries)

    def numbers(self) -> list[int]:
        """Return the numbers of all models with an entry."""
        return list(self._entries)

    def work_of(self, number: int) -> int:
        """Return a model's work as it was entered; 0 without an entry."""
        entry = self._entries.get(number)
        return 0 if entry is None else entry[1]

    def enter(self, now_ns: int, number: int, rank_ns: int, work_ns: int) -> None:
        """Have a model of a number rank at an instant with its work; 0 takes it out."""
        entry = self._entries.get(number)
        if entry is not None:
            self._add(entry[0], -entry[1])
        if work_ns:
            if not self._entries:
                self._middle_ns = float(rank_ns - now_ns)
            half_ns = self.width_ns * SLOTS // 2
            apart_ns = rank_ns - now_ns - self._middle_ns
            self._middle_ns += MIDDLE_WEIGHT * max(-half_ns, min(half_ns, apart_ns))
            slot = self._slot(now_ns, rank_ns)
            self._entries[number] = slot, work_ns, rank_ns
            self._add(slot, work_ns)
        elif entry is not None:
            del self._entries[number]

    def before(self, now_ns: int, number: int) -> int:
        """Return the work of the models that rank before one, by at least a slot; 0 if it has no entry."""
        entry = self._entries.get(number)
        if entry is None:
            return 0
        first = self._first(now_ns)
        start, end = first & (SLOTS - 1), max(entry[0], first) & (SLOTS - 1)
        if start <= end:
            return self._sum(end) - self._sum(start)
        return self.total_ns - (self._sum(start) - self._sum(end))

    def fit(self, now_ns: int, slack_ns: int) -> None:
        """Have slots span what is needed where requests have about this slack when they come."""
        needed_ns = SLACKS * slack_ns // SLOTS
        width_ns = self.width_ns
        if 2 * needed_ns < width_ns or needed_ns > width_ns:
            width_ns = FINEST_NS
            while width_ns < needed_ns and width_ns < COARSEST_NS:
                width_ns *= 2
        if width_ns != self.width_ns:
            self._respan(now_ns, width_ns)

    def clear(self) -> None:
        """Take all models out."""
        self._entries.clear()
        self._tree = [0] * (SLOTS + 1)
        self.total_ns = 0

    def validate(self) -> None:
        """Check the sums; raise AssertionError if they are not those of the entries."""
        works = [0] * SLOTS
        for number, (slot, work_ns, _) in self._entries.items():
            assert work_ns > 0, f"model {number} is entered with {work_ns} ns of work"
            works[slot & (SLOTS - 1)] += work_ns
        assert sum(works) == self.total_ns, f"{self.total_ns} ns of work stand, entries say {sum(works)}"
        before = 0
        for slot, work_ns in enumerate(works):
            assert self._sum(slot) == before, f"{self._sum(slot)} ns stand before slot {slot}, not {before}"
            before += work_ns

    def _first(self, now_ns: int) -> int:
        return (now_ns + int(self._middle_ns)) // self.width_ns - SLOTS // 2

    def _slot(self, now_ns: int, rank_ns: int) -> int:
        first = self._first(now_ns)
        return min(max(rank_ns // self.width_ns, first + SPARE), first + SLOTS - 1 - SPARE)

    def _respan(self, now_ns: int, width_ns: int) -> None:
        entries = self._entries
        self._entries = {}
        self._tree = [0] * (SLOTS + 1)
        self.total_ns, self.width_ns = 0, width_ns
        for number, (_, work_ns, rank_ns) in entries.items():
            self.enter(now_ns, number, rank_ns, work_ns)

    def _add(self, slot: int, work_ns: int) -> None:
        self.total_ns += work_ns
        tree, index = self._tree, (slot & (SLOTS - 1)) + 1
        while index <= SLOTS:
            tree[index] += work_ns
            index += index & -index

    def _sum(self, index: int) -> int:
        """Return the work in the slots of the ring before one."""
        tree, work_ns = self._tree, 0
        while index:
            work_ns += tree[index]
            index &= index - 1
        return work_ns


LOOKS: Final = 7
"""Number of times that a request is looked at."""
FIRST_LOOK: Final = 0.34
"""Part of a request's time, from its arrival until it is due, before which it is not looked at."""
LOOK_EVERY: Final = 0.07
"""Each look falls into a part of this length, where its id has it."""
PRESSED_NS: Final = 2_000_000_000
"""Time after a refusal for which requests are looked at: without one, nothing is kept for it."""
PRESSED_FROM: Final = 0.01
"""The part of requests that is refused from which on a refusal has others looked at: a few among thousands
don't pay for looks at all of them."""
REFUSED_WEIGHT: Final = 1 / 1024
"""Weight of one request in that part."""
FIRST_MARGIN: Final = 0.5
LEAST_MARGIN: Final = 0.02
MOST_MARGIN: Final = 20.0
SAMPLED: Final = 8
"""One in so many requests that would be refused early is kept, to see whether that would have been right."""
STEP: Final = 0.1
"""Movement of the logarithm of a margin, in all, for a sample that was wrong and as many that were right as
belong to it."""
IDLE_STEP: Final = 0.01
"""The same movement for a request that was refused at last, while its model refuses none early."""
IDLE_FROM: Final = 32
"""A model refuses none early that has refused so many at last since it would have refused one."""
_LOOK_HASH: Final = 0x9E3779B1
"""Multiples of the golden ratio: what follows one another is spread evenly."""
_SAMPLE_HASH: Final = 0x6A09E667
"""Multiples of the square root of 2, likewise, so that a sample is looked at no sooner than others."""
SLACK_WEIGHT: Final = 1 / 64
"""Weight of one request in the mean time that requests are given."""
FAR: Final = 4.0
"""A request that is given more than so many times the mean counts as if it were given that."""
FEW_HOLDERS: Final = 4
"""A model on more workers than this finds one free at any time."""


class Refused:
    """The margin that a model has learnt from its refusals."""

    __slots__ = ("margin", "missed")

    def __init__(self) -> None:
        self.margin = 1.0
        """Times what those of all models have in common."""
        self.missed = 0
        """Requests that were refused at last since one was, or would have been, refused early."""


class Overload:
    """Looks at what waits while requests are refused."""

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        self._state = state
        self._policy = policy
        wrongly = state.config.refuse_wrongly or 0.0
        self.early = wrongly > 0
        """True if any request is refused early."""
        self._if_wrong = math.exp(-STEP * (1.0 - wrongly))
        self._if_right = math.exp(STEP * wrongly)
        self._if_idle = math.exp(IDLE_STEP)
        self._until_ns = 0
        self._refused_share = 0.0
        """The part of the requests that was refused lately after it had waited."""
        self._slack_ns = 0.0
        self._work_ahead = WorkAhead()
        self._margin = FIRST_MARGIN
        """The part of the margins that all models have in common."""
        self._models: dict[int, Refused] = {}
        """The models of which a request was refused, by number."""
        self._sampled: dict[int, Request] = {}
        """Queued requests that would have been refused early, by id."""

    def pressed(self, now_ns: int) -> bool:
        """Return whether requests have been refused lately, so that those that wait are looked at."""
        return now_ns < self._until_ns

    def first_look_ns(self, now_ns: int, request: Request) -> int | None:
        """Return when a request that is queued now is to be looked at first; None for not at all."""
        self._refused_share -= REFUSED_WEIGHT * self._refused_share
        if now_ns >= self._until_ns or request.due_ns is None:
            return None
        slack_ns = request.due_ns - request.arrived_ns
        mean_ns = self._slack_ns or float(slack_ns)
        self._slack_ns = mean_ns + SLACK_WEIGHT * (min(float(slack_ns), FAR * mean_ns) - mean_ns)
        return self.next_look_ns(now_ns, request)

    def next_look_ns(self, now_ns: int, request: Request) -> int | None:
        """Return when a request that waits is to be looked at next; None for not at all."""
        due_ns = request.due_ns
        if due_ns is None or now_ns >= self._until_ns:
            return None
        slack_ns = due_ns - request.arrived_ns
        shift = (request.id * _LOOK_HASH & 0xFFFFFFFF) / 2**32
        past = 0
        if slack_ns > 0:
            # One fewer than the looks that are over: this is rounded otherwise than they are.
            over = ((now_ns - request.arrived_ns) / slack_ns - FIRST_LOOK) / LOOK_EVERY - shift
            past = max(0, int(over) - 1)
        for part in range(past, LOOKS):
            look_ns = request.arrived_ns + int((FIRST_LOOK + LOOK_EVERY * (part + shift)) * slack_ns)
            if look_ns > now_ns:
                return look_ns
        return None

    def ahead(self, now_ns: int, request: Request) -> Ahead | None:
        """Return what stands before a queued request if that makes it improbable that it is served."""
        state, model, due_ns = self._state, request.model, request.due_ns
        placement = _first(model)
        if due_ns is None or placement is None or now_ns >= self._until_ns:
            return None
        rows = model.queue.rows_before(request)
        work_ns = self._work_ahead.before(now_ns, model.number)
        sizes, durations_ns = placement.times.sizes, placement.times.ns
        top = len(sizes) - 1
        work_ns += rows // sizes[top] * durations_ns[top]
        if not work_ns:
            return None
        refused = self._models.get(model.number)
        margin = self._margin if refused is None else self._margin * refused.margin
        workers = max(1, state.cluster.open_workers)
        begin_ns = self._free_ns(now_ns, model) + int(margin * work_ns / workers)
        index = model.index_of[request.rows]
        duration_ns = self._duration_ns(placement, request, index)
        if begin_ns + duration_ns <= due_ns:
            return None
        fewer = 0
        while index and not fewer:
            index -= 1
            if begin_ns + self._duration_ns(placement, request, index) <= due_ns:
                fewer = sizes[index]
        return Ahead(rows, work_ns, workers, margin, begin_ns, duration_ns, fewer)

    def refused(self, now_ns: int) -> None:
        """Remember that a request was refused early."""
        self._press(now_ns)

    def keeps(self, request: Request) -> bool:
        """Return whether a request that would be refused early is kept, to see whether that would be right.

        Which are follows from their ids alone, so that those are as good a sample as any.
        """
        self._of(request.model).missed = 0
        if request.id in self._sampled:
            return True
        if (request.id * _SAMPLE_HASH & 0xFFFFFFFF) * SAMPLED >> 32:
            return False
        self._sampled[request.id] = request
        return True

    def missed(self, now_ns: int, request: Request) -> None:
        """Learn from a request that was kept, and refused since no batch could serve it any more."""
        if self.early:
            self._press(now_ns)
            refused = self._of(request.model)
            refused.missed += 1
            if self._sampled.pop(request.id, None) is not None:
                self._move(refused, self._if_right)
            elif refused.missed > IDLE_FROM:
                self._move(refused, self._if_idle)

    def _press(self, now_ns: int) -> None:
        """Have requests looked at for a while, if not few are refused."""
        self._refused_share += REFUSED_WEIGHT
        if self._refused_share >= PRESSED_FROM:
            self._until_ns = now_ns + PRESSED_NS

    def withdrawn(self, request: Request) -> None:
        """Forget a request that left its queue for another reason."""
        self._sampled.pop(request.id, None)

    def changed(self, now_ns: int, model: Model) -> None:
        """Enter what waits for a model by its rank; its queue has changed, and the policy knows."""
        work_ahead = self._work_ahead
        if now_ns >= self._until_ns:
            if len(work_ahead):
                work_ahead.clear()
            return
        work_ahead.fit(now_ns, int(self._slack_ns))
        placement = _first(model)
        if placement is None or not model.queue.dues:
            work_ahead.enter(now_ns, model.number, 0, 0)
        else:
            rank_ns = self._policy.standing_ns(model)
            work_ahead.enter(now_ns, model.number, rank_ns, work_of(placement, model.queue.rows))

    def sent(self, now_ns: int, batch: Batch) -> None:
        """Learn from the sampled requests that a batch serves; enter what still waits for its model."""
        if not self.early:
            return
        model = batch.placement.model
        sampled = self._sampled
        if sampled:
            for request in batch.requests:
                if sampled.pop(request.id, None) is not None:
                    self._move(self._of(model), self._if_wrong)
        self.changed(now_ns, model)

    def forget(self, model: Model) -> None:
        """Forget a model that was removed."""
        self._work_ahead.enter(0, model.number, 0, 0)
        self._models.pop(model.number, None)
        for request in [each for each in self._sampled.values() if each.model is model]:
            del self._sampled[request.id]

    def validate(self) -> None:
        """Check what stands; raise AssertionError if it is not what waits."""
        self._work_ahead.validate()
        known = {
            each.number: each for model in self._state.cluster.models.values() for each in model.by_bucket
        }
        for number in self._work_ahead.numbers():
            model = known.get(number)
            assert model is not None, f"work of a model stands that is not there (number {number})"
            assert model.queue.dues, f"work of {model.name} stands, and nothing waits for it"
        for request in self._sampled.values():
            assert request.place is Place.QUEUED, f"{request} is a sample, and not queued"
        for number, refused in self._models.items():
            assert LEAST_MARGIN <= refused.margin <= MOST_MARGIN, f"model {number} has {refused.margin}"

    def _of(self, model: Model) -> Refused:
        refused = self._models.get(model.number)
        if refused is None:
            refused = self._models[model.number] = Refused()
        return refused

    def _move(self, refused: Refused, factor: float) -> None:
        """Move a model's margin, and by a half of it what it has in common with all others."""
        refused.margin = min(MOST_MARGIN, max(LEAST_MARGIN, refused.margin * factor))
        self._margin = min(MOST_MARGIN, max(LEAST_MARGIN, self._margin * math.sqrt(factor)))

    def _free_ns(self, now_ns: int, model: Model) -> int:
        """Return when a worker that holds a model can begin something new."""
        soonest_ns = self._state.soonest_ns(now_ns)
        if len(model.usable) > FEW_HOLDERS:
            return soonest_ns
        free_ns = -1
        for placement in model.usable.values():
            each_ns = placement.worker.exec.available_ns(now_ns, soonest_ns)
            if free_ns < 0 or each_ns < free_ns:
                free_ns = each_ns
        return free_ns

    def _duration_ns(self, placement: Placement, request: Request, index: int) -> int:
        """Return the time that a request must have left for a batch of the size of an index."""
        duration_ns = placement.times.ns[index]
        if placement.of is not None:
            duration_ns = placement.at_sizes_ns(
                duration_ns, placement.times.sizes[index], request.event.sizes
            )
        return self._policy.least_ns(placement, index, duration_ns)


def work_of(placement: Placement, rows: int) -> int:
    """Return how long EXEC takes on a worker for rows of a model in the largest batches."""
    times = placement.times
    top = times.sizes[-1]
    full = rows // top
    rest = rows - full * top
    work_ns = full * times.ns[-1]
    return work_ns + times.ns[times.index_of[rest]] if rest else work_ns


def sentence(ahead: Ahead, due_ns: int, longer_ns: int, rows: int) -> str:
    """Say why a request is refused early, and what would be accepted instead.

    ``longer_ns`` is the time from its arrival to the deadline that would be accepted.
    """
    late_ms = (ahead.begin_ns + ahead.duration_ns - due_ns) / 1e6
    said = (
        f"with {ahead.work_ns / 1e6:.1f} ms of work before it on {ahead.workers} "
        f"worker{'s' * (ahead.workers != 1)} it would be {late_ms:.1f} ms late; "
        f"a deadline of {longer_ns / 1e6:.0f} ms would be accepted"
    )
    return f"{said}, or {ahead.fewer_rows} of its {rows} rows" if ahead.fewer_rows else said


def _first(model: Model) -> Placement | None:
    for placement in model.usable.values():
        return placement
    return None
