"""Ribbon's objective (equation 2), and which pools a result rules out (its section 4).

A pool that violates is worth what it reaches of the promise, at most a half; one that holds is worth a half
and what it saves of the dearest price, so that any that holds is worth more than any that does not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainspring.planner.estimate import THETA, Estimate
from mainspring.planner.pools.search import Task
from mainspring.planner.pools.space import Counts
from mainspring.planner.problem import Pool

Flags = npt.NDArray[np.bool_]


def dearest(task: Task) -> float:
    """Return the price of the most of all kinds."""
    return task.problem.price(tuple(kind.most for kind in task.problem.kinds))


def worth(task: Task, estimate: Estimate) -> float:
    """Return the value of Ribbon's objective function, from 0 to 1."""
    attainment = task.trials.attainment
    if estimate.holds(attainment):
        return 0.5 + 0.5 * (1 - estimate.price / dearest(task))
    # A pool whose interval alone is below the promise counts as just below it.
    return 0.5 * min(1.0, estimate.attainment / attainment)


class Pruned:
    """The pools of a space that need not be tried any more."""

    def __init__(self, task: Task) -> None:
        self._task = task
        counts = task.space.counts
        self.out: Flags = np.zeros(len(counts), np.bool_)
        """True for each pool of the space that is ruled out."""
        self.tried: Flags = np.zeros(len(counts), np.bool_)
        self._row = {tuple(row): place for place, row in enumerate(counts.tolist())}

    @property
    def left(self) -> npt.NDArray[np.int64]:
        """The places of the pools that may still be tried."""
        return np.flatnonzero(~(self.out | self.tried))

    def place(self, pool: Pool) -> int:
        """Return a pool's place in the space; raise KeyError for one that is not of it."""
        return self._row[pool]

    def note(self, estimate: Estimate) -> None:
        """Rule out all pools within one that clearly violates, and those as dear as one that holds."""
        self.tried[self._row[estimate.pool]] = True
        if estimate.holds(self._task.trials.attainment):
            self.out |= self._task.space.prices >= estimate.price - 1e-9
        elif estimate.attainment < self._task.trials.attainment - THETA:
            self.out |= within(self._task.space.counts, estimate.pool)


def within(counts: Counts, pool: Pool) -> Flags:
    """Return which pools have at most as many devices of each kind as one."""
    return np.asarray((counts <= np.array(pool)).all(axis=1))
