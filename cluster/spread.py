"""The distribution of INFER durations: a histogram per batch size, and whether a model is *erratic* by it.

Where a request's shape does not explain how long it takes, the last ten durations say little about the next.
The policy `mainspring` plans erratic models' batches with the empirical distribution, as Orloj does (arXiv
2209.00159); estimates stay as they are. The mark is for operators, too.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

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
