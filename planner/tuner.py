"""The tuner: replicas of each step as the traffic changes (InferLine, SoCC '20, section 5). Pure.

An envelope is the most queries in any window of a length, for lengths that double from the service time to a
minute. If it exceeds the sample's anywhere, steps get more replicas by the highest such rate (the paper), or
by the greatest ratio to the sample's; some time after the last change, they keep those for the busiest five
seconds of the last thirty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
SECOND_NS = 1_000_000_000
LONGEST_NS = 60 * SECOND_NS
SETTLED_NS = 15 * SECOND_NS
"""Time without a change before replicas are taken away: three times what it takes to start one."""
CALM_NS, CALM_WINDOW_NS = 30 * SECOND_NS, 5 * SECOND_NS
"""Time that is looked back on for that, and the windows in it."""
ROUNDING = 1e-9


def windows_ns(service_ns: int) -> tuple[int, ...]:
    """Return lengths of windows, doubling from the service time to a minute."""
    found = [min(max(1, service_ns), LONGEST_NS)]
    while found[-1] < LONGEST_NS:
        found.append(min(2 * found[-1], LONGEST_NS))
    return tuple(found)


def envelope(arrivals_ns: Whole, windows: Sequence[int], first: int = 0) -> tuple[int, ...]:
    """Return the most arrivals in any window of each length that ends with one of those from ``first`` on.

    ``arrivals_ns`` ascends; a window of length w that ends at t has what came after t - w.
    """
    ends_ns, until = arrivals_ns[first:], np.arange(first + 1, len(arrivals_ns) + 1)
    return tuple(
        int((until - np.searchsorted(arrivals_ns, ends_ns - window, side="right")).max(initial=0))
        for window in windows
    )


class TunedStep(msgspec.Struct, frozen=True):
    """A step as it was planned."""

    share: float
    """Rows for each query (s)."""
    throughput: float
    """Rows a second of a replica (mu)."""
    load: float
    """Part of its replicas' throughput that the sample took (rho)."""
    replicas: int


class Sample(msgspec.Struct, frozen=True):
    """The sample that a plan was made for, and the plan's steps."""

    windows: tuple[int, ...]
    """Lengths of windows in nanoseconds."""
    counts: tuple[int, ...]
    """The most queries in any window of each length."""
    steps: tuple[TunedStep, ...]


class Tuner:
    """Decides how many replicas each step is to have."""

    def __init__(self, sample: Sample, now_ns: int, *, relative: bool = True) -> None:
        """``relative``: a window that holds more than the sample's adds as much in proportion, since the plan
        has the sample's bursts in it already; without, as the paper, what its rate alone would take."""
        self.replicas = tuple(step.replicas for step in sample.steps)
        """Replicas that each step is to have."""
        self._sample = sample
        self._relative = relative
        self._begun_ns = now_ns
        self._changed_ns = now_ns
        self._arrivals: list[int] = []
        """Instants of the last minute before a decision, and of what came since."""
        self._new = 0
        """Place of the first of them that no decision has seen."""

    def interrupted(self, now_ns: int) -> None:
        """Forget the queries: some were not heard, so that what is known of them would be too few."""
        self._arrivals, self._new = [], 0
        self._begun_ns = self._changed_ns = now_ns

    def have(self, replicas: tuple[int, ...]) -> None:
        """Take the steps to have these replicas, where they can't have as many as was decided."""
        self.replicas = replicas

    def arrived(self, now_ns: int) -> None:
        """Note a query; instants ascend."""
        self._arrivals.append(now_ns)

    def decide(self, now_ns: int) -> tuple[int, ...]:
        """Return the replicas that each step is to have from now on: the same as before without news."""
        arrivals_ns = np.array(self._arrivals, np.int64)
        rate = self._exceeding(arrivals_ns)
        wanted = self.replicas
        if rate is not None:
            needs = [needed(rate, step, step.load) for step in self._sample.steps]
            wanted = tuple(map(max, wanted, needs))
        elif now_ns - max(self._changed_ns + SETTLED_NS, self._begun_ns + CALM_NS) >= 0:
            wanted = tuple(map(min, wanted, self._calm(arrivals_ns, now_ns)))
        if wanted != self.replicas:
            self.replicas, self._changed_ns = wanted, now_ns
        kept = int(np.searchsorted(arrivals_ns, now_ns - LONGEST_NS, side="right"))
        del self._arrivals[:kept]
        self._new = len(self._arrivals)
        return self.replicas

    def _exceeding(self, arrivals_ns: Whole) -> float | None:
        """Return the highest rate since the last decision that exceeds the sample's; None if none does."""
        sample = self._sample
        counts = envelope(arrivals_ns, sample.windows, self._new)
        planned = sample.counts[-1] / sample.windows[-1] * SECOND_NS
        rates = [
            count / usual * planned if self._relative and usual else count / window * SECOND_NS
            for window, count, usual in zip(sample.windows, counts, sample.counts, strict=True)
            if count > usual
        ]
        return max(rates, default=None)

    def _calm(self, arrivals_ns: Whole, now_ns: int) -> list[int]:
        """Return the replicas for the busiest window of the last while, with the least load of any step."""
        late = int(np.searchsorted(arrivals_ns, now_ns - CALM_NS, side="right"))
        (count,) = envelope(arrivals_ns[late:], (CALM_WINDOW_NS,))
        rate = count / CALM_WINDOW_NS * SECOND_NS
        least = min(step.load for step in self._sample.steps)
        return [needed(rate, step, least) for step in self._sample.steps]


def needed(rate: float, step: TunedStep, load: float) -> int:
    """Return the replicas of a step for queries at a rate, each to be busy for ``load`` of the time."""
    return max(1, math.ceil(rate * step.share / (step.throughput * load) - ROUNDING))
