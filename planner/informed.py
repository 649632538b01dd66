"""The search ``informed``: for dear evaluations, guided by an estimator that is quick and may be off.

The quick estimator says what pools do if every kind is as its profile says, and under factors on the kinds'
durations; what these are is learnt from each evaluation (`Belief`). The first pool is the estimated optimum,
unless pools were tried at another load. Then it is always the one of the highest expected saving, and none
that is estimated to violate clearly, nor one that is less likely to hold than `CHANCES` ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from mainspring.planner.estimate import THETA, Estimate, Estimator, Scales
from mainspring.planner.problem import PlanError, Pool
from mainspring.planner.search import Ending, Task

Values = npt.NDArray[np.float64]
OFF = 0.07
"""Standard deviation of the logarithm of a kind's factor, before anything was measured."""
DRAWS = 256
SEED = 0x51
NOISE = 0.25
"""Standard deviation of a share that is missed, as a logarithm, by what factors do not explain: a window has
queries of its own, and the draws are few."""
LEAST_MISSED = 0.002
"""Added to a share that is missed before its logarithm is taken: shares below tell nothing apart."""
LIKELY = 1e-3
"""Draws of less than this part of the greatest weight count as none."""
LOAD_STEP = 0.02
"""Loads that stand for factors are rounded to this part, for estimators that can't take factors."""


class Belief:
    """Weighted draws of the kinds' factors, and what pools do under them."""

    def __init__(self, prior: Estimator, rates: Values) -> None:
        """``rates`` are how many queries one device of each kind serves in a time."""
        self._prior = prior
        self._rates = rates
        normal = np.random.default_rng(SEED).standard_normal((DRAWS // 2, len(rates)))
        # Each draw has its opposite, so that they are right on average.
        self._factors: Values = np.exp(OFF * np.concatenate([normal, -normal]))
        self._log_weights: Values = np.zeros(len(self._factors))
        self._known: dict[tuple[Pool, float, tuple[float, ...]], float] = {}

    def learn(self, estimate: Estimate, load: float = 1.0) -> None:
        """Learn from what a pool did at a multiple of the load that is planned for.

        Of a pool of which no query was counted nothing is learnt.
        """
        if not estimate.queries:
            return
        places = self._likely()
        shares = np.array([self._share(estimate.pool, load, self._factors[place]) for place in places])
        apart = (_missed(shares) - _missed(np.array([estimate.attainment]))) / NOISE
        log_weights = np.full(len(self._factors), -np.inf)
        log_weights[places] = self._log_weights[places] - 0.5 * apart * apart
        self._log_weights = log_weights - log_weights.max()

    def chance(self, pool: Pool, target: float) -> float:
        """Return how likely a pool is to hold."""
        places = self._likely()
        weights = np.exp(self._log_weights[places])
        shares = np.array([self._share(pool, 1.0, self._factors[place]) for place in places])
        # What a draw has at the target itself may be just above or just below it.
        apart = (_missed(np.array([target])) - _missed(shares)) / NOISE
        holds = np.array([NormalDist().cdf(2 * each) for each in apart])
        return float(weights @ holds / weights.sum())

    def expected(self, pool: Pool) -> float:
        """Return the share in time that is expected of a pool: that under the mean of the factors."""
        weights = np.exp(self._log_weights)
        mean = np.exp(weights @ np.log(self._factors) / weights.sum())
        return self._share(pool, 1.0, mean)

    def _likely(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._log_weights >= math.log(LIKELY))

    def _share(self, pool: Pool, load: float, factors: Values) -> float:
        """Return the share in time that a pool has under factors."""
        key = pool, load, tuple(factors.tolist())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._estimated(pool, load, factors)
        return found

    def _estimated(self, pool: Pool, load: float, factors: Values) -> float:
        if isinstance(self._prior, Scales):
            return self._prior.scaled(tuple(factors.tolist())).evaluate(pool, load=load).attainment
        # A pool of slower devices acts as one under more load.
        rates = np.array(pool) * self._rates
        slower = math.log(load) + math.log(float(rates.sum() / (rates / factors).sum()))
        rounded = math.exp(LOAD_STEP * round(slower / LOAD_STEP))
        key = pool, rounded, ()
        if key not in self._known:
            self._known[key] = self._prior.evaluate(pool, load=rounded).attainment
        return self._known[key]


def _missed(shares: Values) -> Values:
    """Return the logarithm of what is missed."""
    return np.asarray(np.log(1.0 - shares + LEAST_MISSED))


WORTH_IT = 0.001
"""An expected saving of less than this part of the price is none."""
CHANCES = (0.3, 0.8, 0.97)
"""A pool that is less likely to hold than this is not tried: before any that was tried violated, after one,
and after more."""
SURE = 0.9
"""While none is known to hold, savings count from the cheapest pool that is as likely to hold as this."""


class _Informed:
    """One search."""

    def __init__(self, task: Task, prior: Estimator) -> None:
        self._task = task
        durations_ns = task.problem.durations_ns[:, task.problem.queries.counted :]
        self.belief = Belief(prior, 1.0 / durations_ns.mean(axis=1))
        self._target = task.trials.attainment
        self._chances: dict[Pool, float] = {}

    def evaluate(self, pool: Pool) -> None:
        """Try a pool, and learn from what it does."""
        self.belief.learn(self._task.trials.evaluate(pool))
        self._chances.clear()

    def start(self) -> Pool | None:
        """Return the cheapest pool that is estimated to hold."""
        held = (pool for pool, _ in self._pools() if self.belief.expected(pool) >= self._target)
        return next(held, None)

    def next(self) -> Pool | None:
        """Return the pool of the highest expected saving; None if none is worth it."""
        trials = self._task.trials
        best = trials.best
        reference = best.price if best is not None else self._safe()
        least = CHANCES[min(trials.violating, len(CHANCES) - 1)]
        found: tuple[float, Pool] | None = None
        for pool, price in self._pools():
            most = reference - price
            if most <= WORTH_IT * reference or (found is not None and most <= found[0]):
                break
            if self._violates(pool):
                continue
            chance = self._chance(pool)
            if chance >= least and most * chance > (WORTH_IT * reference if found is None else found[0]):
                found = most * chance, pool
        if found is None and best is None:
            return self._likeliest()
        return None if found is None else found[1]

    def _pools(self) -> Iterator[tuple[Pool, float]]:
        """Yield the pools that were not tried, by rising price, with their prices."""
        space = self._task.space
        for place in np.flatnonzero(self._task.possible):
            pool = tuple(space.counts[place].tolist())
            if pool not in self._task.trials:
                yield pool, float(space.prices[place])

    def _likeliest(self) -> Pool | None:
        """Return the pool that is most likely to hold, the first that is sure to if there is one."""
        found: tuple[float, Pool] | None = None
        for pool, _ in self._pools():
            if not self._violates(pool):
                chance = self._chance(pool)
                if found is None or chance > found[0] + 1e-6:
                    found = chance, pool
                if chance >= CHANCES[-1]:
                    break
        return None if found is None else found[1]

    def _safe(self) -> float:
        """Return a little more than the price of the cheapest pool that is likely to hold."""
        for pool, price in self._pools():
            if not self._violates(pool) and self._chance(pool) >= SURE:
                return price * (1 + 0.02)
        return float(self._task.space.prices[-1]) * (1 + 0.02)

    def _chance(self, pool: Pool) -> float:
        """Return how likely a pool is to hold."""
        if pool not in self._chances:
            self._chances[pool] = self.belief.chance(pool, self._target)
        return self._chances[pool]

    def _violates(self, pool: Pool) -> bool:
        """Return whether a pool is estimated to violate clearly."""
        return self.belief.expected(pool) < self._target - THETA


def informed(task: Task) -> Ending:
    """Try pools from the estimated optimum on; raise `BudgetSpent`, and `PlanError` without an estimator."""
    if task.prior is None:
        raise PlanError("--search informed needs a quick estimator beside --evaluate: give --prior queues")
    search = _Informed(task, task.prior)
    if task.before is not None:
        for each in task.before.tried:
            search.belief.learn(each, 1 / task.before.load)
    first = search.start() if task.before is None else search.next()
    for pool in task.starts or tuple(filter(None, [first])):
        search.evaluate(pool)
    while (best := search.next()) is not None:
        search.evaluate(best)
    if task.trials.best is None:
        return Ending("no pool that is left is likely to hold")
    return Ending(f"no saving above {WORTH_IT:.1%} is expected of any pool that may hold")
