"""A histogram of durations with relative precision, for percentiles while a run goes on."""

from __future__ import annotations

SUB_BITS = 6
"""2**6 buckets for each doubling: at most 1.6% off."""


class DurationHistogram:
    """Counts of durations in buckets whose width grows with the duration; a few thousand at most."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0

    def add(self, duration_ns: int) -> None:
        """Count a duration; a negative one counts as 0."""
        value = max(duration_ns, 0)
        shift = max(value.bit_length() - SUB_BITS - 1, 0)
        bucket = (shift << (SUB_BITS + 1)) + (value >> shift)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += 1

    def percentile(self, percent: float) -> int | None:
        """Return the lower edge of the bucket at this percentile, in ns; None if nothing was counted."""
        if not self._total:
            return None
        need = percent / 100 * self._total
        seen = 0
        bucket = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= need:
                break
        shift = bucket >> (SUB_BITS + 1)
        return (bucket & ((1 << (SUB_BITS + 1)) - 1)) << shift
