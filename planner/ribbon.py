"""The search ``ribbon``: Bayesian optimisation of pools (Ribbon, SC '21, section 4).

After two starting points by seed, or those that are given, the pool of the highest expected improvement over
all that are neither tried nor ruled out, by a Gaussian process over what was tried. Under first come, first
served more devices can lower the share in time, so what pruning rules out might hold: it is a heuristic.

After a change of load the first pool is the one that was best before. If it violates now, so do those that
were no better than it (the paper's set S): what is within them is ruled out, and the process learns of them
what they would do, in proportion to what the best pool does. The paper's system does not know by how much the
load has changed; ours does, so the second pool is the best one before, with as many times the devices. The
cheapest pool is mostly a few devices away from it: pools near the best are tried first (`NEAR`). Of the
others the process knows little, and it goes for what it knows least.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring import extras
from mainspring.planner.estimate import THETA, Estimate
from mainspring.planner.floor import Counts
from mainspring.planner.problem import PlanError, Pool
from mainspring.planner.search import Before, Ending, Task

Values = npt.NDArray[np.float64]
LENGTHS = (2.0, 20.0)
"""Bounds of the kernel's length for each kind, in devices. Pools that differ by one device do much the same
(Ribbon asks that of its objective), and a length beyond the bounds of the space says nothing."""
NOISE = 1e-6
"""Added to the variance of each evaluation, which is the same each time: for the arithmetic."""


class Surrogate:
    """Predicts what pools are worth by those that were evaluated."""

    def __init__(self, kinds: int, *, rounding: bool = True) -> None:
        """Raise `PlanError` where scikit-learn is missing."""
        try:
            self._process = _process(kinds, rounding)
        except ModuleNotFoundError as error:
            raise PlanError(
                f"--search ribbon needs the Python module {error.name}, which is not installed here: "
                f"{extras.command('planner')}"
            ) from None

    def fit(self, counts: Counts, values: Values) -> None:
        """Learn from evaluated pools, rows of counts, and what they are worth."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            # A length at its bound says that a kind hardly matters, which is no fault.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._process.fit(counts, values)

    def predict(self, counts: npt.NDArray[Any]) -> tuple[Values, Values]:
        """Return mean and standard deviation of what pools are worth."""
        mean, deviation = self._process.predict(counts, return_std=True)
        return mean, deviation

    def improvement(self, counts: Counts, best: float) -> Values:
        """Return the expected improvement of pools over the best that was evaluated."""
        from scipy.special import ndtr

        mean, deviation = self.predict(counts)
        deviation = np.maximum(deviation, 1e-12)
        z = (mean - best) / deviation
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        found: Values = (mean - best) * ndtr(z) + deviation * density
        return found


def _process(kinds: int, rounding: bool) -> Any:
    """Return scikit-learn's regressor."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    class RoundedMatern(Matern):  # type: ignore[misc]
        """k'(x, y) = k(round(x), round(y))."""

        def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:  # noqa: N803
            return super().__call__(np.rint(X), None if Y is None else np.rint(Y), eval_gradient)

    kernel = RoundedMatern if rounding else Matern
    return GaussianProcessRegressor(
        kernel(length_scale=np.full(kinds, 3.0), length_scale_bounds=LENGTHS, nu=2.5),
        alpha=NOISE,
        normalize_y=True,
        random_state=0,
    )


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


STARTS = 2
WORTH_IT = 0.001
"""An improvement of less than this part of the best pool's price is none."""
PATIENCE = 60
"""The search ends once so many pools in a row were tried of which none was expected: the process is fitted to
few pools, and is at times far too sure."""
MOST_LOOKED_AT = 1_000_000
"""Most pools that are all examined; of a larger space, a sample of this size and the best's neighbours
are."""
NEAR = (1, 3)
"""Distances from the best pool, in devices of each kind: after a change of load, pools within the first are
tried before those within the second, and these before those farther away."""


def ribbon(task: Task) -> Ending:
    """Try pools by expected improvement; raise `BudgetSpent`."""
    rng = np.random.default_rng(task.seed)
    surrogate, pruned = Surrogate(len(task.problem.kinds)), Pruned(task)
    tried: list[Pool] = []
    values: list[float] = []

    def evaluate(pool: Pool) -> None:
        estimate = task.trials.evaluate(pool)
        pruned.note(estimate)
        tried.append(pool)
        values.append(worth(task, estimate))

    before = task.before
    for pool in task.starts or (() if before is None else (before.best.pool,)):
        evaluate(pool)
    for told in _expected(task):
        pruned.note(told)
        tried.append(told.pool)
        values.append(worth(task, told))
    if before is not None and not task.starts:
        grown = _grown(task, before)
        if pruned.place(grown) in pruned.left:
            evaluate(grown)
    while len(tried) < (1 if task.starts else STARTS) and len(pruned.left):
        evaluate(_pool(task, int(rng.choice(pruned.left))))
    hopeless = 0
    while len(left := pruned.left):
        surrogate.fit(np.array(tried, np.int64), np.array(values))
        if before is not None:
            left = _near(task, left)
        left = _looked_at(task, left, tried[int(np.argmax(values))], rng)
        improvement = surrogate.improvement(task.space.counts[left], max(values))
        at = int(np.argmax(improvement))
        best = task.trials.best
        expected = best is None or 2 * dearest(task) * improvement[at] >= WORTH_IT * best.price
        hopeless = 0 if expected else hopeless + 1
        if hopeless > PATIENCE:
            return Ending(
                f"no improvement above {WORTH_IT:.1%} of the price was expected of {PATIENCE} pools"
            )
        evaluate(_pool(task, int(left[at])))
    return Ending("every pool was tried or ruled out")


def _expected(task: Task) -> list[Estimate]:
    """Return what pools would do now that did no better at the load before than the one that was best, if
    that one violates now."""
    before = task.before
    now = None if before is None else task.trials.known(before.best.pool)
    if before is None or now is None or now.holds(task.trials.attainment):
        return []
    share = now.attainment / before.best.attainment
    return [
        msgspec.structs.replace(each, attainment=each.attainment * share, low=0.0, complete=False)
        for each in before.tried
        if each.attainment <= before.best.attainment and each.pool not in task.trials
    ]


def _grown(task: Task, before: Before) -> Pool:
    """Return the pool that was best before, with as many times the devices as the load is now, rounded up."""
    return tuple(
        min(kind.most, max(kind.least, math.ceil(round(before.load * count, 6))))
        for kind, count in zip(task.space.kinds, before.best.pool, strict=True)
    )


def _near(task: Task, left: np.ndarray) -> np.ndarray:
    """Return those of the pools that are nearest to the best that holds; all, if none is near."""
    best = task.trials.best
    if best is not None:
        apart = np.abs(task.space.counts[left] - np.array(best.pool)).max(axis=1)
        for most in NEAR:
            if (apart <= most).any():
                return np.asarray(left[apart <= most])
    return left


def _pool(task: Task, place: int) -> Pool:
    return tuple(task.space.counts[place].tolist())


def _looked_at(task: Task, left: np.ndarray, best: Pool, rng: np.random.Generator) -> np.ndarray:
    """Return the pools to look at: all, or of very many a sample and those near the best."""
    if len(left) <= MOST_LOOKED_AT:
        return left
    near = np.abs(task.space.counts[left] - np.array(best)).max(axis=1) <= 1
    sample = rng.choice(left, MOST_LOOKED_AT, replace=False)
    return np.union1d(sample, left[near])
