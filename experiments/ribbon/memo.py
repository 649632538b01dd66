"""What all searches of a model share: each pool is evaluated once, and all can be asked about."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mainspring.planner.estimate import THETA, Estimate
from mainspring.planner.pools.floor import above_floor
from mainspring.planner.pools.objective import within
from mainspring.planner.pools.search import Before, Task, searches
from mainspring.planner.pools.space import Space
from mainspring.planner.pools.trials import BudgetSpent, Trials
from mainspring.planner.problem import Pool, Problem
from mainspring.planner.queues import Queues


class Remembered:
    """Estimates each pool once for all searches."""

    name = "queues"
    dear = False
    shares = False

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._known: dict[tuple[Pool, float], Estimate] = {}
        self._scaled: dict[tuple[float, ...], Remembered] = {}

    def scaled(self, factors: tuple[float, ...]) -> Remembered:
        """Return the estimator with each kind slower or faster, as `Scales.scaled`."""
        if factors not in self._scaled:
            self._scaled[factors] = Remembered(self._queues.scaled(factors))
        return self._scaled[factors]

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        """Return a pool's estimate, played to its end: as `Estimator.evaluate`."""
        del whole
        if (pool, load) not in self._known:
            self._known[pool, load] = self._queues.evaluate(pool, whole=True, load=load)
        return self._known[pool, load]


class Arena:
    """One problem by the paper's rule, the bare share, whose searches share what they evaluate."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.space = Space(problem.kinds)
        self.estimator = Remembered(Queues(problem, confidence=0.0))
        self.possible = above_floor(problem, self.space.counts)
        best = self.run("exact").best
        assert best is not None, "some pool within the bounds holds"
        self.best: Estimate = best
        """The cheapest pool that holds."""

    def run(
        self,
        name: str,
        seed: int = 0,
        starts: Sequence[Pool] = (),
        before: Before | None = None,
        *,
        to_end: bool = True,
    ) -> Trials:
        """Return what a search tried, else (not ``to_end``) what it tried until the cheapest pool."""
        trials = Trials(self.estimator, self.problem.attainment, told=None if to_end else self._stop)
        task = Task(self.problem, self.space, self.possible, trials, seed, tuple(starts), before=before)
        with contextlib.suppress(BudgetSpent):
            searches()[name](task)
        return trials

    def until(self, trials: Trials) -> int:
        """Return how many evaluations it took to the cheapest pool that holds; 0 if it was not found."""
        pools = [each.pool for each in trials.tried]
        return pools.index(self.best.pool) + 1 if self.best.pool in pools else 0

    def _stop(self, trials: Trials) -> None:
        if trials.tried[-1].pool == self.best.pool:
            raise BudgetSpent

    def one_kind(self) -> Estimate | None:
        """Return the cheapest pool of one kind that holds."""
        alone = [
            self.estimator.evaluate(pool)
            for place in range(len(self.problem.kinds))
            for pool in self.space.of_one_kind(place)
        ]
        holding = [each for each in alone if each.holds(self.problem.attainment)]
        return min(holding, key=lambda each: each.price, default=None)

    def starts(self, seed: int) -> tuple[Pool, ...]:
        """Return the two pools that searches begin with: the best of one kind, on which the service is said
        to run already (Ribbon, section 3.2), and one that is drawn."""
        drawn = self.space.counts[int(np.random.default_rng(seed).integers(len(self.space)))]
        one = self.one_kind()
        return (*([] if one is None else [one.pool]), tuple(drawn.tolist()))

    def table(self) -> list[Estimate]:
        """Return the estimates of all pools, by rising price."""
        return [self.estimator.evaluate(pool) for pool in self.space.pools()]

    def pruned_wrongly(self) -> tuple[int, int]:
        """Return how many pools violate clearly, and within how many of these the cheapest that holds is:
        active pruning rules it out once one of them is tried."""
        clear = [each for each in self.table() if each.attainment < self.problem.attainment - THETA]
        place = np.array([self.best.pool])
        return len(clear), sum(bool(within(place, each.pool)[0]) for each in clear)

    def ruled_out(self, tried: Sequence[Estimate]) -> bool:
        """Return whether the pools that were tried had active pruning rule out the cheapest that holds."""
        place = np.array([self.best.pool])
        return any(
            each.attainment < self.problem.attainment - THETA and bool(within(place, each.pool)[0])
            for each in tried
        )


def prices_of(found: Sequence[Estimate]) -> npt.NDArray[np.float64]:
    """Return what pools cost."""
    return np.array([each.price for each in found])
