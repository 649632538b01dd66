"""Durations of one repeated operation, and the seed estimate that is made from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PERCENTS = (50.0, 90.0, 99.0, 99.9, 99.99)
DISTURBED = 1.25
"""A seed is at most this multiple of the median: longer durations are taken for disturbances."""


class Timing(msgspec.Struct, frozen=True):
    """A summary of durations."""

    runs: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    @classmethod
    def of(cls, durations_ns: Ints) -> Timing:
        """Return the timing of one or more durations."""
        return cls(
            len(durations_ns), quantile(durations_ns, 50), quantile(durations_ns, 99), int(durations_ns.max())
        )

    @property
    def seed_ns(self) -> int:
        """The first estimate: high among the measured durations, because a low one makes answers late."""
        return min(self.p99_ns, round(self.p50_ns * DISTURBED))

    @property
    def spread(self) -> float:
        """The 99th percentile as a multiple of the median."""
        return self.p99_ns / self.p50_ns


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The number of repetitions: for ``seconds``, but within these numbers of runs."""

    seconds: float = 1.0
    fewest: int = 5
    most: int = 2000
    warm_up: int = 2
    """Runs that are not counted."""


def quantile(durations_ns: Ints, percent: float) -> int:
    """Return the smallest measured duration that ``percent`` of all do not exceed."""
    # Rounded, so that 99.9 % of 1,000 is exactly 999.
    rank = max(1, math.ceil(round(len(durations_ns) * percent / 100, 6)))
    return int(np.partition(durations_ns, rank - 1)[rank - 1])


def repeat(run: Callable[[], int], effort: Effort) -> Ints:
    """Return the durations in ns that ``run`` returned."""
    for _ in range(effort.warm_up):
        run()
    durations = [run()]
    end_s = time.monotonic() + effort.seconds
    while len(durations) < effort.fewest or (time.monotonic() < end_s and len(durations) < effort.most):
        durations.append(run())
    return np.array(durations, np.int64)
