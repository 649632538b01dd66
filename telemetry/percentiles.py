"""Percentiles of durations in bounded memory, right to 0.4 %.

Durations are counted in buckets that are at most 1/128 of their value wide, and a percentile is the middle of
its bucket. Counts can be added and taken off again, so that windows of time need no second pass. What is sent
to other processes and scraped has fixed bounds instead (`telemetry.bounded`).
"""

from __future__ import annotations

import math

_SUB_BITS = 7
"""Each doubling has 2**7 buckets; durations below 2**8 ns have one each."""


class DurationHistogram:
    """Counts of durations by bucket: some 3,000 buckets cover 1 us to 10 s."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, duration_ns: int) -> None:
        """Count a duration; a negative one counts as 0."""
        value = max(duration_ns, 0)
        shift = max(value.bit_length() - _SUB_BITS - 1, 0)
        bucket = (shift << _SUB_BITS) + (value >> shift)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def merge(self, other: DurationHistogram, sign: int = 1) -> None:
        """Add what another histogram counted, or take it off again with a ``sign`` of -1."""
        for bucket, value in other._counts.items():
            count = self._counts.get(bucket, 0) + sign * value
            if count:
                self._counts[bucket] = count
            else:
                self._counts.pop(bucket, None)

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile by nearest rank, in milliseconds; None if nothing was counted."""
        rank = max(1, math.ceil(sum(self._counts.values()) * percent / 100))
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                return _middle_ns(bucket) / 1e6
        return None


def _middle_ns(bucket: int) -> int:
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    lowest = (bucket - (shift << _SUB_BITS)) << shift
    return lowest + (1 << shift) // 2
