"""The search ``informed``: for dear evaluations, guided by an estimator that is quick and may be off.

The quick estimator is the prior mean of a Gaussian process; what the process is about is by how much more
load each pool behaves than the estimator has it carry. The kernel is linear in the kinds' parts of a pool's
throughput: a kind that is slower than its profile is so in every pool. After each evaluation the process
learns the load at which the estimator has the pool do what it did. The first pool is the estimated optimum;
then always the one of the highest expected saving, and none that is estimated to violate clearly.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from mainspring.planner.errors import PlanError
from mainspring.planner.estimate import THETA, Estimate, Estimator
from mainspring.planner.pools.search import Ending, Task
from mainspring.planner.problem import Pool

Values = npt.NDArray[np.float64]
OFF = 0.06
"""Standard deviation of how far a kind is off its profile, before anything was measured."""
NOISE = 0.03
"""Of what kinds do not explain: a window's own queries, and how kinds act on one another."""
WORTH_IT = 0.001
"""An expected saving of less than this part of the price is none."""
CHANCES = (0.3, 0.75, 0.97)
"""A pool that is less likely to hold than this is not tried: before any that was tried violated, after one,
and after more."""
SURE = 0.9
"""While none is known to hold, savings count from the cheapest pool that is as likely to hold as this."""
LOADS = 0.02 * np.arange(-40, 41)
"""Logarithms of the loads that the estimator is asked about: from less than a half to more than twice."""


class Curve:
    """What the estimator has one pool do under rising load."""

    def __init__(self, prior: Estimator, pool: Pool, parts: Values) -> None:
        self.parts = parts
        """Of each kind, its part of the pool's throughput."""
        self._prior = prior
        self._pool = pool
        self._known: dict[int, float] = {}

    def attainment(self, load: float) -> float:
        """Return the share in time at a load, given as a logarithm."""
        return self._at(int(np.argmin(np.abs(LOADS - load))))

    def load_of(self, attainment: float) -> float:
        """Return the greatest load at which the pool ends this share in time, as a logarithm."""
        low, high = 0, len(LOADS)
        while low < high:
            middle = (low + high) // 2
            if self._at(middle) >= attainment:
                low = middle + 1
            else:
                high = middle
        if low in (0, len(LOADS)):
            return float(LOADS[min(low, len(LOADS) - 1)])
        above, below = self._at(low - 1), self._at(low)
        return float(LOADS[low - 1] + (LOADS[low] - LOADS[low - 1]) * (above - attainment) / (above - below))

    def _at(self, place: int) -> float:
        if place not in self._known:
            load = math.exp(LOADS[place])
            self._known[place] = self._prior.evaluate(self._pool, load=load).attainment
        return self._known[place]


class Process:
    """What is known of the kinds: a Gaussian process with a linear kernel, kept as its weights."""

    def __init__(self, kinds: int) -> None:
        self._mean: Values = np.zeros(kinds)
        self._cov: Values = OFF * OFF * np.eye(kinds)

    def predict(self, parts: Values) -> tuple[float, float]:
        """Return mean and standard deviation of a pool's load beyond what is estimated, as a logarithm."""
        return float(parts @ self._mean), math.sqrt(float(parts @ self._cov @ parts) + NOISE * NOISE)

    def learn(self, parts: Values, load: float) -> None:
        """Learn the load as which a pool's own acted."""
        weighted = self._cov @ parts
        gain = weighted / (float(parts @ weighted) + NOISE * NOISE)
        self._mean = self._mean + gain * (load - float(parts @ self._mean))
        self._cov = self._cov - np.outer(gain, weighted)


class _Informed:
    """One search."""

    def __init__(self, task: Task, prior: Estimator) -> None:
        self._task = task
        self._prior = prior
        self._process = Process(len(task.problem.kinds))
        durations_ns = task.problem.durations_ns[:, task.problem.queries.counted :]
        self._rates = 1.0 / durations_ns.mean(axis=1)
        self._curves: dict[Pool, Curve] = {}
        self._target = task.trials.attainment

    def evaluate(self, pool: Pool) -> None:
        """Try a pool, and learn from what it does."""
        self.learn(self._task.trials.evaluate(pool), 1.0)

    def learn(self, estimate: Estimate, load: float) -> None:
        """Learn from what a pool did at a multiple of the load now."""
        curve = self._curve(estimate.pool)
        expected = curve.attainment(math.log(load))
        # What ends nearly all in time anyway says nothing about the load.
        if min(estimate.attainment, expected) < 1 - (1 - self._target) / 10:
            acted = curve.load_of(estimate.attainment) - math.log(load)
            self._process.learn(curve.parts, acted)

    def start(self) -> Pool | None:
        """Return the cheapest pool that is estimated to hold, by all that was learnt."""
        for row in self._task.space.counts[np.flatnonzero(self._task.possible)].tolist():
            pool = tuple(row)
            curve = self._curve(pool)
            mean, _ = self._process.predict(curve.parts)
            if curve.attainment(mean) >= self._target:
                return pool
        return None

    def next(self) -> Pool | None:
        """Return the pool of the highest expected saving; None if none is worth it."""
        trials, space = self._task.trials, self._task.space
        best = trials.best
        reference = best.price if best is not None else self._safe()
        least = CHANCES[min(trials.violating, len(CHANCES) - 1)]
        found: tuple[float, Pool] | None = None
        for place in np.flatnonzero(self._task.possible):
            price, pool = float(space.prices[place]), tuple(space.counts[place].tolist())
            most = reference - price
            if most <= WORTH_IT * reference or (found is not None and most <= found[0]):
                break
            if pool in trials:
                continue
            chance = self._chance(pool)
            if chance < least or self._violates(pool):
                continue
            if most * chance > (WORTH_IT * reference if found is None else found[0]):
                found = most * chance, pool
        if found is None and best is None:
            return self._likeliest()
        return None if found is None else found[1]

    def _likeliest(self) -> Pool | None:
        """Return the pool that is most likely to hold, of those that are not estimated to violate."""
        space, found = self._task.space, None
        for place in np.flatnonzero(self._task.possible):
            pool = tuple(space.counts[place].tolist())
            if pool not in self._task.trials and not self._violates(pool):
                chance = self._chance(pool)
                if found is None or chance > found[0] + 1e-6:
                    found = chance, pool
        return None if found is None else found[1]

    def _safe(self) -> float:
        """Return a little more than the price of the cheapest pool that is likely to hold."""
        space = self._task.space
        for place in np.flatnonzero(self._task.possible):
            pool = tuple(space.counts[place].tolist())
            if pool not in self._task.trials and self._chance(pool) >= SURE:
                return float(space.prices[place]) * (1 + 0.02)
        return float(space.prices[-1]) * (1 + 0.02)

    def _chance(self, pool: Pool) -> float:
        """Return how likely a pool is to hold."""
        curve = self._curve(pool)
        mean, deviation = self._process.predict(curve.parts)
        return NormalDist().cdf((curve.load_of(self._target) - mean) / deviation)

    def _violates(self, pool: Pool) -> bool:
        """Return whether a pool is estimated to violate clearly."""
        curve = self._curve(pool)
        return curve.attainment(self._process.predict(curve.parts)[0]) < self._target - THETA

    def _curve(self, pool: Pool) -> Curve:
        if pool not in self._curves:
            rates = np.array(pool) * self._rates
            self._curves[pool] = Curve(self._prior, pool, rates / rates.sum())
        return self._curves[pool]


def informed(task: Task) -> Ending:
    """Try pools from the estimated optimum on; raise `BudgetSpent`, and `PlanError` without an estimator."""
    if task.prior is None:
        raise PlanError("--search informed needs a quick estimator beside --evaluate: give --prior queues")
    search = _Informed(task, task.prior)
    if task.before is not None:
        for each in task.before.tried:
            search.learn(each, 1 / task.before.load)
    for pool in task.starts or tuple(filter(None, [search.start()])):
        search.evaluate(pool)
    while (best := search.next()) is not None:
        search.evaluate(best)
    if task.trials.best is None:
        return Ending("no pool that is left is likely to hold")
    return Ending(f"no saving above {WORTH_IT:.1%} is expected of any pool that may hold")
