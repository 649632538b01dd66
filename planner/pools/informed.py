"""The search ``informed``: for dear evaluations, guided by an estimator that is quick and may be off.

The quick estimator says what pools do if every kind is as its profile says, and under factors on the kinds'
durations; what these are is learnt from each evaluation (`belief`). The first pool is the estimated optimum,
unless pools were tried at another load. Then it is always the one of the highest expected saving, and none
that is estimated to violate clearly, nor one that is less likely to hold than `CHANCES` ask.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mainspring.planner.errors import PlanError
from mainspring.planner.estimate import THETA, Estimator
from mainspring.planner.pools.belief import Belief
from mainspring.planner.pools.search import Ending, Task
from mainspring.planner.problem import Pool

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
