"""The advice where no pool within the bounds holds: the least change of each thing that would do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from mainspring.planner.estimate import Estimate, Estimator
from mainspring.planner.problem import Pool, Problem, added

MOST_TIMES = 32
"""This many times a kind's bound are tried at most."""
LOAD_STEPS = 10
"""Halvings of the range of loads."""


class More(msgspec.Struct, frozen=True, kw_only=True):
    """A pool beyond the bound of one kind that holds."""

    kind: str
    extra: int
    """Number of devices more than ``most``."""
    pool: Pool
    price: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of which each alone would do."""

    more: tuple[More, ...]
    """Pools with more devices of one kind, at most one for each kind, the cheapest first."""
    target_ms: float | None
    """The target that the pool with the greatest share in time keeps; None if it refuses too many."""
    load_share: float
    """The share of the load that a pool within the bounds carries; 0 if not a thousandth."""
    load_pool: Pool
    """The pool that carries it."""


def advise(problem: Problem, estimator: Estimator, nearest: Estimate) -> Advice:
    """Return what would do where no pool holds."""
    found = [_more(problem, estimator, place) for place in range(len(problem.kinds))]
    candidates = dict.fromkeys([nearest.pool, *_bases(problem)])
    share, pool = max(
        [(_load(problem, estimator, each), each) for each in candidates], key=lambda each: each[0]
    )
    return Advice(
        more=tuple(sorted((each for each in found if each), key=lambda each: each.price)),
        target_ms=estimator.evaluate(nearest.pool, whole=True).reached_ms,
        load_share=share,
        load_pool=pool,
    )


def _bases(problem: Problem) -> list[Pool]:
    """Return the pools of the most of each kind alone, and of all kinds, of which slow ones may do harm."""
    most = [kind.most for kind in problem.kinds]
    alone = [added((0,) * len(most), place, count) for place, count in enumerate(most)]
    return [*alone, tuple(most)]


def _more(problem: Problem, estimator: Estimator, place: int) -> More | None:
    """Return the least that one kind needs beyond its bound, with the others at most or without them."""
    kind, bases = problem.kinds[place], _bases(problem)
    found = []
    for base in (bases[place], bases[-1]):
        extra = least_extra(partial(_holds, problem, estimator, base, place), MOST_TIMES * kind.most)
        if extra is not None:
            pool = added(base, place, extra)
            found.append(More(kind=kind.name, extra=extra, pool=pool, price=problem.price(pool)))
    return min(found, key=lambda each: (each.extra, each.price), default=None)


def _holds(problem: Problem, estimator: Estimator, base: Pool, place: int, extra: int) -> bool:
    return estimator.evaluate(added(base, place, extra)).holds(problem.attainment)


def least_extra(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least number from 1 to ``most`` for which something holds; None if none is found.

    Doubles until it holds, and then halves: right where it holds for all larger numbers as well.
    """
    low, high = 0, 1
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _load(problem: Problem, estimator: Estimator, pool: Pool) -> float:
    """Halve towards the greatest share of the load that a pool carries."""
    low, high = 0.0, 1.0
    for _ in range(LOAD_STEPS):
        middle = (low + high) / 2
        if estimator.evaluate(pool, load=middle).holds(problem.attainment):
            low = middle
        else:
            high = middle
    return round(low, 3)
