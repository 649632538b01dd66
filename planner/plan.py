"""`plan`: the cheapest pool of devices that keeps a promise, found by a search that an estimator answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from mainspring.planner.advice import Advice, advise
from mainspring.planner.errors import PlanError
from mainspring.planner.estimate import CONFIDENCE, Estimate, Estimator
from mainspring.planner.pools.floor import Flags, above_floor, unable
from mainspring.planner.pools.search import Ending, Task, searches
from mainspring.planner.pools.space import Space
from mainspring.planner.pools.trials import BudgetSpent, Told, Trials
from mainspring.planner.problem import Pool, Problem, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.simulated import Simulated
from mainspring.simulator.spec import SimulationSpec

Chosen = TypeVar("Chosen")
ESTIMATORS: dict[str, Callable[[Problem, float], Estimator]] = {"queues": Queues, "simulate": Simulated}
"""By name; the first is the default."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found."""

    kinds: tuple[str, ...]
    """In the order of pools' counts."""
    objective: float
    search: str
    evaluate: str
    confidence: float
    best: Estimate | None
    """The cheapest pool that holds; None if none does."""
    nearest: Estimate | None
    """The pool with the greatest share in time that was tried."""
    proven: bool
    """Whether all cheaper pools are known not to hold, by this estimator."""
    ended: str
    """Why the search ended."""
    one_kind: Estimate | None
    """The cheapest pool of one kind alone that holds, within the bounds."""
    floor_price: float | None
    """No scheduler keeps the promise with a cheaper pool within the bounds; None if with none at all."""
    pools: int
    below_floor: int
    """Pools that no scheduler keeps the promise on."""
    violating: int
    """Evaluated pools that did not hold."""
    warnings: tuple[str, ...]
    advice: Advice | None
    """What would do, if no pool holds and the search knows that."""
    evaluations: tuple[Estimate, ...]
    """In the order in which they were made, without those for ``one_kind`` and ``advice``."""

    @property
    def saved(self) -> float | None:
        """The share of the best single kind's price that the best pool saves."""
        if self.best is None or self.one_kind is None:
            return None
        return 1 - self.best.price / self.one_kind.price


def plan(
    spec: SimulationSpec,
    *,
    search: str = "exact",
    evaluate: str = "queues",
    confidence: float = CONFIDENCE,
    evaluations: int | None = None,
    seed: int = 0,
    starts: Sequence[Pool] = (),
    record: Path | None = None,
    known: Sequence[Estimate] = (),
    told: Told | None = None,
) -> Plan:
    """Search for the cheapest pool of a spec's devices that keeps its objective.

    ``confidence`` 0 has the bare share decide, not its interval's lower end. ``evaluations`` bounds the
    search. ``starts`` are pools to begin with, where a search begins somewhere, in the place of those that
    ``seed`` draws. ``record`` is a file to which each estimate is added, ``known`` are those that it had;
    ``told`` is called after each evaluation. Raises `PlanError` for what can't be planned, and as
    `read_problem`.
    """
    if not 0 <= confidence < 1:
        raise PlanError(f"confidence is {confidence}; it is a share from 0 to below 1, such as 0.95")
    if evaluations is not None and evaluations < 1:
        raise PlanError(f"{evaluations} evaluations find nothing: give 1 or more")
    problem = read_problem(spec)
    warnings = _check_kinds(problem)
    estimator = _chosen("estimator", evaluate, ESTIMATORS)(problem, confidence)
    run = _chosen("search", search, searches())
    space = Space(problem.kinds)
    possible = above_floor(problem, space.counts)
    trials = Trials(estimator, problem.attainment, most=evaluations, record=record, known=known, told=told)
    try:
        ending = run(Task(problem, space, possible, trials, seed, inside(problem, starts)))
    except BudgetSpent:
        ending = Ending(f"{evaluations} evaluations were made")
    found = _Found(problem, space, possible, estimator, trials, ending)
    return _summed_up(found, search, evaluate, confidence, warnings)


@dataclass(frozen=True, eq=False)
class _Found:
    """What a search leaves."""

    problem: Problem
    space: Space
    possible: Flags
    estimator: Estimator
    trials: Trials
    ending: Ending


def _summed_up(found: _Found, search: str, evaluate: str, confidence: float, warnings: Sequence[str]) -> Plan:
    """Return the plan, with what is worth knowing beside its best pool."""
    problem, trials, estimator = found.problem, found.trials, found.estimator
    best, nearest = trials.best, trials.nearest
    if nearest is None or (best is None and found.ending.proven):
        # Skipped pools may come nearer to the promise than those that were tried.
        most = estimator.evaluate(tuple(kind.most for kind in problem.kinds), whole=True)
        nearest = most if nearest is None or most.attainment > nearest.attainment else nearest
        nearest = estimator.evaluate(nearest.pool, whole=True)
    left = found.space.prices[found.possible]
    return Plan(
        kinds=tuple(kind.name for kind in problem.kinds),
        objective=problem.attainment,
        search=search,
        evaluate=evaluate,
        confidence=confidence,
        best=best,
        nearest=nearest,
        proven=found.ending.proven,
        ended=found.ending.why,
        one_kind=best_of_one_kind(problem, found.space, estimator),
        floor_price=float(left[0]) if len(left) else None,
        pools=len(found.space),
        below_floor=int(np.count_nonzero(~found.possible)),
        violating=trials.violating,
        warnings=tuple(warnings),
        advice=advise(problem, estimator, nearest) if best is None and found.ending.proven else None,
        evaluations=tuple(trials.tried),
    )


def best_of_one_kind(problem: Problem, space: Space, estimator: Estimator) -> Estimate | None:
    """Return the cheapest pool of one kind alone that holds, within the kinds' bounds."""
    found: Estimate | None = None
    for place, kind in enumerate(problem.kinds):
        for pool in space.of_one_kind(place):
            if found is not None and pool[place] * kind.price >= found.price:
                break
            if not above_floor(problem, np.array([pool], np.int64))[0]:
                continue
            estimate = estimator.evaluate(pool)
            if estimate.holds(problem.attainment):
                found = estimate
                break
    return found


def inside(problem: Problem, pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """Return pools to start with; raise `PlanError` for one that is not within the bounds."""
    for pool in pools:
        fits = len(pool) == len(problem.kinds) and any(pool)
        if not fits or not all(
            kind.least <= count <= kind.most for kind, count in zip(problem.kinds, pool, strict=True)
        ):
            bounds = ", ".join(f"{kind.least} to {kind.most} {kind.name}" for kind in problem.kinds)
            raise PlanError(f"a search can't start with {','.join(map(str, pool))}: pools have {bounds}")
    return tuple(pools)


def _check_kinds(problem: Problem) -> list[str]:
    """Return warnings of kinds too slow for some queries; raise `PlanError` if none is quick enough."""
    queries, shares = problem.queries, unable(problem)
    ends_in_time = problem.durations_ns[:, queries.counted :] <= queries.slo_ns[queries.counted :]
    reachable = float(ends_in_time.any(axis=0).mean())
    slowest_ns = problem.durations_ns[:, queries.counted :].max(axis=1)
    if reachable < problem.attainment:
        fastest = int(np.argmin(shares))
        raise PlanError(
            f"every kind is too slow: an idle device of the fastest, {problem.kinds[fastest].name}, ends "
            f"{1 - shares[fastest]:.2%} of the queries within their SLO, and {problem.attainment:.4g} is "
            f"asked; its longest takes {slowest_ns[fastest] / 1e6:.4g} ms"
        )
    return [
        f"{kind.name} is too slow for {share:.2%} of the queries even when idle: its longest takes "
        f"{slowest / 1e6:.4g} ms"
        for kind, share, slowest in zip(problem.kinds, shares, slowest_ns, strict=True)
        if share
    ]


def _chosen(what: str, name: str, known: Mapping[str, Chosen]) -> Chosen:
    if name not in known:
        raise PlanError(f"there is no {what} {name!r}: choose {', '.join(known)}")
    return known[name]


__all__ = ["Plan", "Pool", "plan"]
