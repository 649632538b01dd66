"""Estimates of how long actions take, by the last 10 measured durations, seeded from profiles.

Clockwork, section 5.3 ("measurements of past 10 actions duration, stratified by action type, model and
batch size"). INFER is kept for each (device kind, executable, batch size), so that a new copy of a known
model starts with a good estimate; LOAD for each (device kind, weights bytes).

An estimate is their maximum, as Clockwork's is, while they are about equally long, which on a GPU they are.
Where they spread it is the third-largest of ten: beside others' work a CPU has outliers of several times the
median, no measurement foretells the next, and a maximum that holds for ten more executions turns away many
more requests than it saves (docs/measurements.md, "Estimates where durations spread"). An execution that
stood still is no sample at all (`cluster.rolling`).

Where a request's shape does not explain how long it takes, the last ten durations say little about the next:
such a model is *erratic* by a histogram for each batch size (`Spreads`). The policy `mainspring` plans its
batches with the empirical distribution, as Orloj does (arXiv 2209.00159); estimates stay as they are. The
mark is for operators, too.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from mainspring.cluster.rolling import RANK, Rolling
from mainspring.cluster.seeds import indices_by_rows
from mainspring.messages.estimates import DurationState, InferEstimate, LoadEstimate

CEILING_SHIFT: Final = 3
"""A ceiling is an eighth above the estimate that set it: durations on one device mostly differ by less."""
LONG: Final = 99, 100
"""The long quantile."""
TYPICAL: Final = 1, 2
"""The median."""
ERRATIC_FROM: Final = 3
"""Ratio of the long quantile to the median above which a model becomes erratic."""
EVEN_BELOW: Final = 2
"""Ratio below which it is no longer erratic, at all batch sizes."""
FEWEST: Final = 200
"""Fewest durations of a batch size by which it is judged."""
MOST: Final = 1_000
"""Number of durations from which on all counts are halved, so that older ones count less."""
REVIEWED_EVERY: Final = 16
"""Number of samples between two checks whether a model is erratic."""
_FINE: Final = 4
"""Number of parts of an octave, as a power of two: each part is 6 % wide at most."""


class Chances:
    """A distribution of durations, to be asked for chances."""

    __slots__ = ("_lengths_ns", "_within", "mean_ns", "total")

    def __init__(self, counts: dict[int, int]) -> None:
        """``counts`` are those of a `Histogram` that has some."""
        lengths_ns: list[int] = []
        within: list[int] = []
        total = sum_ns = 0
        for part in sorted(counts):
            count = counts[part]
            total += count
            sum_ns += count * _upper_ns(part)
            lengths_ns.append(_upper_ns(part))
            within.append(total)
        self._lengths_ns = lengths_ns
        self._within = within
        self.total = total
        self.mean_ns = sum_ns // total

    def within(self, limit_ns: int) -> float:
        """Return the chance of a duration to be at most so long."""
        index = bisect_right(self._lengths_ns, limit_ns)
        return self._within[index - 1] / self.total if index else 0.0

    def quantile_ns(self, quantile: tuple[int, int]) -> int:
        """Return the duration that a part of all does not exceed, as a fraction."""
        share, of = quantile
        least = (self.total * share + of - 1) // of
        for length_ns, within in zip(self._lengths_ns, self._within, strict=True):
            if within >= least:
                return length_ns
        return self._lengths_ns[-1]


class Histogram:
    """Durations by their size, in a bounded number of counts; the older ones count less."""

    __slots__ = ("_chances", "_counts", "total")

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self._counts: dict[int, int] = dict(counts or {})
        self._chances: Chances | None = None
        self.total = sum(self._counts.values())

    @property
    def counts(self) -> dict[int, int]:
        """Return the number of durations in each part of an octave."""
        return dict(self._counts)

    def add(self, duration_ns: int) -> None:
        """Take a duration in."""
        part = _part(duration_ns)
        self._chances = None
        self._counts[part] = self._counts.get(part, 0) + 1
        self.total += 1
        if self.total >= MOST:
            self._counts = {part: count // 2 for part, count in self._counts.items() if count > 1}
            self.total = sum(self._counts.values())

    def quantile_ns(self, quantile: tuple[int, int]) -> int:
        """Return the duration that a part of all does not exceed, as a fraction; 0 if there is none.

        It is the upper end of its part of the octave.
        """
        share, of = quantile
        left = (self.total * share + of - 1) // of
        for part in sorted(self._counts):
            left -= self._counts[part]
            if left <= 0:
                return _upper_ns(part)
        return 0

    def chances(self) -> Chances | None:
        """Return how the durations are distributed; None before that is known."""
        if self.total < FEWEST:
            return None
        if self._chances is None:
            self._chances = Chances(self._counts)
        return self._chances

    @property
    def uneven(self) -> bool:
        """Return whether the durations are those of an erratic model."""
        enough = self.total >= FEWEST
        return enough and self.quantile_ns(LONG) > ERRATIC_FROM * self.quantile_ns(TYPICAL)

    @property
    def even(self) -> bool:
        """Return whether they are those of a model that is not erratic, or no longer."""
        few = self.total < FEWEST
        return few or self.quantile_ns(LONG) < EVEN_BELOW * self.quantile_ns(TYPICAL)


class Spreads:
    """The histograms of an executable's batch sizes on one kind of device."""

    __slots__ = ("_histograms", "erratic", "total")

    def __init__(self, sizes: int) -> None:
        self._histograms = [Histogram() for _ in range(sizes)]
        self.erratic = False
        """True if its models are erratic (`review`)."""
        self.total = 0
        """Number of durations that were added."""

    def add(self, index: int, duration_ns: int) -> None:
        """Take the duration of a batch of the size of an index in."""
        self._histograms[index].add(duration_ns)
        self.total += 1

    def chances(self, index: int) -> Chances | None:
        """Return how the durations of the batch size of an index are distributed; None if too few are
        known."""
        return self._histograms[index].chances()

    @property
    def told(self) -> bool:
        """Return whether any batch size has enough durations."""
        return any(each.total >= FEWEST for each in self._histograms)

    @property
    def uneven(self) -> bool:
        """Return whether any batch size has the durations of an erratic model."""
        return any(each.uneven for each in self._histograms)

    @property
    def even(self) -> bool:
        """Return whether no batch size has the durations of an erratic model."""
        return all(each.even for each in self._histograms)

    @property
    def due(self) -> bool:
        """Return whether to check again whether its models are erratic."""
        return self.total % REVIEWED_EVERY == 0 and (self.erratic or self.uneven)

    def review(self, others: list[Spreads]) -> None:
        """Find whether its models are erratic, or no longer.

        Where at least half of all others on this kind of device spread as much, it is the device that does.
        """
        if self.erratic:
            self.erratic = not self.even
        elif self.uneven:
            told = [each for each in others if each.told and not each.erratic]
            self.erratic = not told or 2 * sum([each.uneven for each in told]) < len(told)

    def counts(self) -> tuple[dict[int, int], ...]:
        """Return all that it knows beside ``erratic`` and ``total``."""
        return tuple([each.counts for each in self._histograms])

    def restore(self, counts: tuple[dict[int, int], ...], total: int, erratic: bool) -> None:
        """Know what another one of as many sizes knew."""
        self._histograms = [Histogram(each) for each in counts] or [Histogram() for _ in self._histograms]
        self.total, self.erratic = total, erratic


def _part(duration_ns: int) -> int:
    """Return which part of which octave a duration is in."""
    shift = max(0, duration_ns.bit_length() - 1 - _FINE)
    return (shift << _FINE) + (duration_ns >> shift)


def _upper_ns(part: int) -> int:
    """Return the longest duration of a part."""
    shift = max(0, (part >> _FINE) - 1)
    return ((part - (shift << _FINE) + 1) << shift) - 1


class Raised:
    """A count of how often any of some estimates rose beyond its ceiling (`InferTimes.ceilings_ns`)."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class InferTimes:
    """Estimates of one executable on one kind of device, for every batch size.

    ``ns[i]`` belongs to ``sizes[i]``; readers keep a reference to the list, which is updated in place.
    """

    __slots__ = (
        "_raised",
        "_rolling",
        "_transfers",
        "ceilings_ns",
        "index_of",
        "note",
        "ns",
        "opening",
        "sizes",
        "spreads",
        "transfer_ns",
    )

    def __init__(
        self,
        sizes: tuple[int, ...],
        seeds_ns: list[int],
        rank: int = RANK,
        raised: Raised | None = None,
        known: bool = True,
    ) -> None:
        """``raised`` counts for several estimates together; these have one of their own without it.

        ``known`` says whether the seeds were measured on such a device, or are assumed.
        """
        self.sizes = sizes
        self.index_of = indices_by_rows(sizes)
        """``index_for`` as a table by rows."""
        self.ns = [seed_ns if seed_ns > 0 else 1 for seed_ns in seeds_ns]
        self.ceilings_ns = [ns + (ns >> CEILING_SHIFT) for ns in self.ns]
        """No estimate is above its own: what is derived from these holds until `Raised.count` changes."""
        self._raised = raised or Raised()
        self.transfer_ns = [0] * len(sizes)
        """Time for which a batch's inputs occupy the connection to the worker, beyond the delay of any
        dispatch."""
        self.note: object = None
        """The policy's own, dropped where a doubt changes an estimate."""
        self._rolling = [Rolling(seed_ns, rank=rank, known=known) for seed_ns in self.ns]
        self._transfers: dict[int, Rolling] = {}
        """Transfer times that were measured to be more than nothing, by index of the batch size."""
        self.opening: Rolling | None = None
        """Estimate of an OPEN of the executable, once one was measured."""
        self.spreads = Spreads(len(sizes))
        """Distribution of the durations; no estimate follows from it."""

    def state(self, kind: str, executable: str) -> InferEstimate:
        """Return all that is known, as that of an executable on a kind of device."""
        durations = tuple([rolling.state() for rolling in self._rolling])
        transfers = {index: rolling.state() for index, rolling in self._transfers.items()}
        opening = None if self.opening is None else self.opening.state()
        spreads = self.spreads
        told = spreads.counts(), spreads.total, spreads.erratic
        return InferEstimate(kind, executable, self.sizes, durations, transfers, opening, *told)

    def restore(self, state: InferEstimate) -> None:
        """Know what another one of the same sizes knew."""
        for index, duration in enumerate(state.durations):
            self._set(index, self._rolling[index].restore(duration))
        self._transfers = {}
        for index in range(len(self.sizes)):
            self.transfer_ns[index] = 0
        for index, transfer in state.transfers.items():
            rolling = self._transfers[index] = Rolling(0, rank=1)
            self.transfer_ns[index] = rolling.restore(transfer)
        self.opening = None if state.opening is None else restored(state.opening)
        self.spreads.restore(state.spreads, state.measured, state.erratic)

    def add(self, now_ns: int, index: int, duration_ns: int) -> bool:
        """Take the measured duration of a batch of size ``sizes[index]`` in; return whether it is an outlier.

        Nothing takes no time, whatever a worker says: policies divide by what they expect.
        """
        duration_ns = max(duration_ns, 1)
        rolling = self._rolling[index]
        outlying = rolling.stands_out(duration_ns)
        self._set(index, rolling.add(now_ns, duration_ns))
        self.spreads.add(index, duration_ns)
        return outlying

    def give_up(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Record that a batch was awaited in vain."""
        self._set(index, self._rolling[index].give_up(now_ns, duration_ns))
        self.spreads.add(index, duration_ns)

    def add_transfer(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Take in how long the inputs of a batch of size ``sizes[index]`` kept the way busy."""
        rolling = self._transfers.get(index)
        if rolling is None:
            if not duration_ns:
                return
            # This many batches ran until now whose inputs took nothing.
            nothing = max(1, self._rolling[index].count - 1)
            rolling = self._transfers[index] = Rolling(0, seeds=nothing, rank=1, known=nothing > 1)
        self.transfer_ns[index] = rolling.add(now_ns, duration_ns)

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        for rolling in self._rolling:
            if rolling.doubtful(now_ns):
                return True
        for rolling in self._transfers.values():  # noqa: SIM110 - a generator would cost more than the search
            if rolling.doubtful(now_ns):
                return True
        return False

    def doubt(self, now_ns: int) -> None:
        """Let no stale outlier stand in the way (`Rolling.doubt`)."""
        for index, rolling in enumerate(self._rolling):
            before_ns = self.ns[index]
            self._set(index, rolling.doubt(now_ns))
            if self.ns[index] != before_ns:
                self.note = None
        for index, rolling in self._transfers.items():
            self.transfer_ns[index] = rolling.doubt(now_ns)

    def _set(self, index: int, estimate_ns: int) -> None:
        """Have an estimate, below a ceiling that falls once it is twice as high."""
        self.ns[index] = estimate_ns
        ceiling_ns = self.ceilings_ns[index]
        if estimate_ns > ceiling_ns:
            self._raised.count += 1
        elif 2 * estimate_ns > ceiling_ns:
            return
        self.ceilings_ns[index] = estimate_ns + (estimate_ns >> CEILING_SHIFT)

    def index_for(self, rows: int) -> int:
        """Return the index of the smallest size that holds ``rows``; raise ValueError if none does."""
        if rows >= len(self.index_of):
            raise ValueError(f"{rows} rows do not fit the largest batch size {self.sizes[-1]}")
        return self.index_of[rows]

    def for_rows(self, rows: int) -> int:
        """Return the estimate of the smallest batch that holds a number of rows."""
        return self.ns[self.index_for(rows)]


class LoadTime:
    """Estimate of copying one number of bytes to one kind of device."""

    __slots__ = ("_rolling", "ns")

    def __init__(self, seed_ns: int, rank: int = RANK, known: bool = True) -> None:
        """``known`` says whether the seed was measured on such a device, or is assumed."""
        self.ns = seed_ns
        self._rolling = Rolling(seed_ns, rank=rank, known=known)

    def state(self, kind: str, weights_bytes: int) -> LoadEstimate:
        """Return all that is known, as that of a number of bytes on a kind of device."""
        return LoadEstimate(kind, weights_bytes, self._rolling.state())

    def restore(self, state: LoadEstimate) -> None:
        """Know what another one knew."""
        self.ns = self._rolling.restore(state.duration)

    def add(self, now_ns: int, duration_ns: int) -> bool:
        """Take one measured duration in; return whether it is an outlier."""
        outlying = self._rolling.stands_out(duration_ns)
        self.ns = self._rolling.add(now_ns, duration_ns)
        return outlying

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        return self._rolling.doubtful(now_ns)

    def doubt(self, now_ns: int) -> None:
        """Let no stale outlier stand in the way (`Rolling.doubt`)."""
        self.ns = self._rolling.doubt(now_ns)


def restored(state: DurationState) -> Rolling:
    """Return an estimate that knows what another one knew."""
    rolling = Rolling(0, rank=1)
    rolling.restore(state)
    return rolling
