"""An estimate of what a pool does, and the protocol of an estimator.

The interval is of batch means: queries that follow one another wait together, so that their shares in time,
not they, count as draws. It is never narrower than Wilson's of as many queries that were drawn one by one.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.planner.problem import Pool

BATCHES = 20
CONFIDENCE = 0.95
THETA = 0.01
"""A pool that violates by more than this is a clear violation (Ribbon's theta)."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated performance of a pool."""

    pool: Pool
    price: float
    """Price of the pool for an hour."""
    attainment: float
    """The share of queries that ended in time."""
    low: float
    """The ends of its confidence interval."""
    high: float
    p50_ms: float
    """Median latency of the queries that were answered, in milliseconds."""
    p99_ms: float
    reached_ms: float | None
    """Target that would do: the objective's share of queries ended within it; None if more were refused."""
    utilisation: dict[str, float]
    """Part of the time for which the devices of a kind computed, by each kind that the pool has."""
    queries: int
    """Number of queries that are counted; 0 if the pool violates and its share in time is not known."""
    complete: bool
    """True if all queries were played; else it ended early, at a clear violation."""

    def holds(self, attainment: float) -> bool:
        """Return whether the pool keeps the promise: the interval's lower end does."""
        return self.complete and self.low >= attainment


def told_ms(value: float) -> str:
    """Return milliseconds for a person: four digits, and never a power of ten."""
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.4g} ms"


class Estimator(Protocol):
    """An evaluator of pools."""

    name: str
    dear: bool
    """True if an evaluation takes minutes and moves a cluster: then the search alone evaluates."""
    shares: bool
    """True if queries may share executions."""

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        """Estimate a pool; ``whole`` if a clear violation is to be played to its end too.

        ``load`` thins or crowds the same queries: 0.9 has them come at nine tenths of the rate.
        """


@runtime_checkable
class Scales(Protocol):
    """An estimator that can have each kind be slower or faster than its profile."""

    def scaled(self, factors: tuple[float, ...]) -> Estimator:
        """Return an estimator of the same queries on devices whose kinds take ``factors`` times as long."""


@runtime_checkable
class Settles(Protocol):
    """An estimator that changes something which is to be left as the plan has it."""

    def settle(self, best: Pool | None) -> None:
        """Leave the best pool; without one, what was there at first. Raises as `Estimator.evaluate`."""

    def abandon(self, best: Pool | None) -> None:
        """Do so after a search that did not end, and say so; raises nothing if that fails, too."""


def interval(in_time: npt.NDArray[np.bool_], confidence: float) -> tuple[float, float]:
    """Return the confidence interval of the share of queries in time; with confidence 0, the share twice."""
    share = float(in_time.mean())
    if not confidence:
        return share, share
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    low, high = _wilson(share, len(in_time), z)
    if len(in_time) >= 2 * BATCHES:
        means = np.array([batch.mean() for batch in np.array_split(in_time, BATCHES)])
        half = _student(z, BATCHES - 1) * float(means.std(ddof=1)) / math.sqrt(BATCHES)
        low, high = min(low, share - half), max(high, share + half)
    return max(0.0, low), min(1.0, high)


def most_late(counted: int, attainment: float) -> int:
    """Return how many of the counted queries may be late before a violation is a clear one."""
    return math.ceil(round(counted * min(1.0, 1 - attainment + THETA), 6))


def _wilson(share: float, count: int, z: float) -> tuple[float, float]:
    """Return Wilson's interval, for draws that do not hang on one another."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return middle - half, middle + half


def _student(z: float, freedom: int) -> float:
    """Return the quantile of Student's t that belongs to a normal one (Cornish and Fisher's expansion)."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
