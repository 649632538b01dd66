"""The searches ``hill-climb`` and ``rsm``, which Ribbon is compared with (its section 5.3).

Hill climbing takes a device away from a pool that holds, and adds one to a pool that violates: of such
neighbours it goes to the one of which the objective is highest. Where none is higher it begins again at
random. Response surface methodology first tries the points of a design of three levels, face-centred:
corners, centres of faces, and the centre; then it climbs from the best of them.

Neither prunes: of what the paper describes, active pruning is Ribbon's, and another one the random search's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mainspring.planner.pools.objective import worth
from mainspring.planner.pools.search import Ending, Task
from mainspring.planner.problem import Pool


def hill_climb(task: Task) -> Ending:
    """Climb from a starting point, and again from others; raise `BudgetSpent`."""
    climber = _Climber(task)
    for pool in task.starts:
        climber.climb(pool)
    return climber.restart()


def rsm(task: Task) -> Ending:
    """Try the points of a design, and climb from the best ones; raise `BudgetSpent`."""
    climber = _Climber(task)
    points = [*task.starts, *design(task)]
    for pool in sorted(points, key=climber.worth, reverse=True):
        climber.climb(pool)
    return climber.restart()


class _Climber:
    """Climbs, from where it is told or from pools that were not tried yet."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rng = np.random.default_rng(task.seed)

    def worth(self, pool: Pool) -> float:
        """Return what a pool is worth, evaluated if it is the first time."""
        return worth(self._task, self._task.trials.evaluate(pool))

    def climb(self, pool: Pool) -> None:
        """Go up until no neighbour is worth more."""
        best = self.worth(pool)
        while True:
            around = [(self.worth(each), each) for each in self._neighbours(pool)]
            value, higher = max(around, default=(best, pool))
            if value <= best:
                return
            best, pool = value, higher

    def restart(self) -> Ending:
        """Climb from random pools until all were tried."""
        counts, trials = self._task.space.counts, self._task.trials
        while len(trials.tried) < len(counts):
            pool = tuple(counts[int(self._rng.integers(len(counts)))].tolist())
            if pool not in trials:
                self.climb(pool)
        return Ending("all pools were tried")

    def _neighbours(self, pool: Pool) -> Iterator[Pool]:
        """Yield the pools with one device less of a kind if one holds, one more if it violates."""
        trials = self._task.trials
        step = -1 if trials.evaluate(pool).holds(trials.attainment) else 1
        for place, kind in enumerate(self._task.problem.kinds):
            count = pool[place] + step
            near = (*pool[:place], count, *pool[place + 1 :])
            if kind.least <= count <= kind.most and any(near):
                yield near


def design(task: Task) -> list[Pool]:
    """Return the design's points: of three kinds, 15.

    Of two kinds there are 5, corners and centre, as in the paper's figure 12.
    """
    levels = [(kind.least, (kind.least + kind.most) // 2, kind.most) for kind in task.problem.kinds]
    middle = tuple(each[1] for each in levels)
    corners = list(itertools.product(*[(low, high) for low, _, high in levels]))
    faces = [
        (*middle[:place], level, *middle[place + 1 :])
        for place, (low, _, high) in enumerate(levels)
        for level in (low, high)
        if len(levels) > 2
    ]
    return [pool for pool in dict.fromkeys([*corners, *faces, middle]) if any(pool)]
