"""The searches ``hill-climb`` and ``rsm``, which Ribbon is compared with (its section 5.3).

Hill climbing goes to the neighbour, one device more or less of one kind, of which the objective is highest,
and begins again at random where none is higher. Response surface methodology first tries the points of a
design of three levels, face-centred: corners, centres of faces, and the centre; then it climbs from the best
of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mainspring.planner.pools.objective import Pruned, worth
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
    points = [*task.starts, *_design(task)]
    for pool in sorted(points, key=climber.worth, reverse=True):
        climber.climb(pool)
    return climber.restart()


class _Climber:
    """Climbs, and remembers what was tried."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._pruned = Pruned(task)
        self._rng = np.random.default_rng(task.seed)

    def worth(self, pool: Pool) -> float:
        """Return what a pool is worth, evaluated if it is the first time."""
        estimate = self._task.trials.evaluate(pool)
        self._pruned.note(estimate)
        return worth(self._task, estimate)

    def climb(self, pool: Pool) -> None:
        """Go up until no neighbour is worth more; those that are ruled out are not tried."""
        best = self.worth(pool)
        while True:
            around = [(self.worth(each), each) for each in self._neighbours(pool)]
            value, higher = max(around, default=(best, pool))
            if value <= best:
                return
            best, pool = value, higher

    def restart(self) -> Ending:
        """Climb from random pools until none is left."""
        while len(left := self._pruned.left):
            self.climb(tuple(self._task.space.counts[int(self._rng.choice(left))].tolist()))
        return Ending("every pool was tried or ruled out")

    def _neighbours(self, pool: Pool) -> Iterator[Pool]:
        for place, kind in enumerate(self._task.problem.kinds):
            for step in (-1, 1):
                count = pool[place] + step
                near = (*pool[:place], count, *pool[place + 1 :])
                if kind.least <= count <= kind.most and any(near):
                    at = self._pruned.place(near)
                    if self._pruned.tried[at] or not self._pruned.out[at]:
                        yield near


def _design(task: Task) -> list[Pool]:
    """Return the design's points: of three kinds, 15."""
    levels = [(kind.least, (kind.least + kind.most) // 2, kind.most) for kind in task.problem.kinds]
    middle = tuple(each[1] for each in levels)
    corners = list(itertools.product(*[(low, high) for low, _, high in levels]))
    faces = [
        (*middle[:place], level, *middle[place + 1 :])
        for place, (low, _, high) in enumerate(levels)
        for level in (low, high)
    ]
    return [pool for pool in dict.fromkeys([*corners, *faces, middle]) if any(pool)]
