"""`plan`: the cheapest pool of devices that keeps a promise, found by a search that an estimator answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from mainspring.messages.choices import one_of
from mainspring.planner.estimate import CONFIDENCE, Estimate, Estimator, Settles, told_ms
from mainspring.planner.floor import Flags, Space, above_floor, least_price, unable
from mainspring.planner.problem import PlanError, Pool, Problem, added, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.search import Before, BudgetSpent, Ending, Search, Task, Told, Trials, searches
from mainspring.planner.simulated import Simulated
from mainspring.simulator.spec import SimulationSpec

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


RELAXED = 1.3
KINDS = 3
"""Most kinds in a pool: with more, the savings hardly grow, and the space does (Ribbon, figure 8)."""


def cost_effectiveness(problem: Problem) -> list[float]:
    """Return how many queries a device of each kind serves for a unit of currency (equation 1)."""
    mean_ns = problem.durations_ns[:, problem.queries.counted :].mean(axis=1)
    return [3600 * 1e9 / float(mean) / kind.price for mean, kind in zip(mean_ns, problem.kinds, strict=True)]


def choose_kinds(problem: Problem, most: int = KINDS) -> tuple[int, ...]:
    """Return the places of the kinds to plan with, at most ``most`` unless ``least`` demands more.

    They stay in their order of preference.
    """
    kinds = problem.kinds
    if len(kinds) <= most:
        return tuple(range(len(kinds)))
    counted = slice(problem.queries.counted, None)
    durations_ns, slo_ns = problem.durations_ns[:, counted], problem.queries.slo_ns[counted]
    effective = cost_effectiveness(problem)
    in_time = (durations_ns <= slo_ns).mean(axis=1)
    relaxed = (durations_ns <= RELAXED * slo_ns).mean(axis=1)
    able = [place for place in range(len(kinds)) if in_time[place] >= problem.attainment]
    chosen = {place for place, kind in enumerate(kinds) if kind.least}
    chosen.add(max(able, key=lambda place: effective[place]) if able else int(np.argmax(in_time)))
    for place in sorted(range(len(kinds)), key=lambda place: -effective[place]):
        if len(chosen) < most and relaxed[place] >= problem.attainment:
            chosen.add(place)
    return tuple(sorted(chosen))


IMPROVES = 0.001
"""A smaller share of the queries does not count."""
MOST = 1_024
"""Most devices of one kind; a bound beyond that is the spec's to give."""


def bounded(problem: Problem, pools: Sequence[Pool] = ()) -> Problem:
    """Return the problem with a bound for each kind whose group has no ``most``.

    It is at least the kind's ``least``, and what ``pools``, which are to be within the bounds, have of it.
    """
    inside = [pool for pool in pools if len(pool) == len(problem.kinds)]
    kinds = tuple(
        kind
        if kind.most
        else msgspec.structs.replace(
            kind, most=max(kind.least, _bound(problem, place), *[pool[place] for pool in inside])
        )
        for place, kind in enumerate(problem.kinds)
    )
    return replace(problem, kinds=kinds)


def _bound(problem: Problem, place: int) -> int:
    """Return the least number of a kind that alone ends the queries in time that it ends if none waits."""
    queries, estimator = problem.queries, Queues(problem)
    alone_ns = problem.durations_ns[place] + problem.between_ns + problem.around_ns
    most = float((alone_ns <= queries.slo_ns)[queries.counted :].mean())
    found = least_extra(partial(_saturates, estimator, problem, place, most - IMPROVES), MOST)
    return MOST if found is None else found


def _saturates(estimator: Queues, problem: Problem, place: int, share: float, count: int) -> bool:
    pool = added((0,) * len(problem.kinds), place, count)
    return estimator.evaluate(pool, whole=True).attainment >= share


Chosen = TypeVar("Chosen")
Factory = Callable[[Problem, float], Estimator]
"""Makes an estimator for a problem, with the confidence of its intervals."""
ESTIMATORS: dict[str, Factory] = {"queues": Queues, "simulate": Simulated}
"""Makers of estimators, by name; the first is the default."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search."""

    kinds: tuple[str, ...]
    """Kinds of devices, in the order of pools' counts."""
    objective: float
    rate: float
    """Requests a second that it is for."""
    slo_ms: float
    """Their mean SLO."""
    load: float
    """Load that the plan is for, as a multiple of the spec's rate."""
    search: str
    evaluate: str
    confidence: float
    best: Estimate | None
    """The cheapest pool that holds; None if none does."""
    nearest: Estimate | None
    """The pool with the greatest share in time that was tried."""
    proven: bool
    """True if all cheaper pools are known not to hold, by this estimator."""
    ended: str
    """Reason why the search ended."""
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
    """Changes that would do, if no pool holds and the search knows that."""
    evaluations: tuple[Estimate, ...]
    """Estimates in the order in which they were made, without those for ``one_kind`` and ``advice``."""

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
    evaluate: str | Factory = "queues",
    confidence: float = CONFIDENCE,
    evaluations: int | None = None,
    seed: int = 0,
    starts: Sequence[Pool] = (),
    prior: str | None = None,
    kinds: int = KINDS,
    load: float = 1.0,
    before: Before | None = None,
    record: Path | None = None,
    known: Sequence[Estimate] = (),
    told: Told | None = None,
) -> Plan:
    """Search for the cheapest pool of a spec's devices that keeps its objective.

    ``confidence`` 0 has the bare share decide, not its interval's lower end. ``evaluations`` bounds the
    search. ``starts`` are pools to begin with, where a search begins somewhere, in the place of those that
    ``seed`` draws. ``prior`` names the quick estimator that the search ``informed`` is guided by. ``load``
    has the queries come at so many times the spec's rate, and ``before`` is a search at another load that
    this one follows. ``record`` is a file to which each estimate is added, ``known`` are those that it had;
    ``told`` is called after each evaluation. Raises `PlanError` for what can't be planned, and as
    `read_problem`.
    """
    if not 0 <= confidence < 1:
        raise PlanError(f"confidence is {confidence}; it is a share from 0 to below 1, such as 0.95")
    if evaluations is not None and evaluations < 1:
        raise PlanError(f"{evaluations} evaluations find nothing: give 1 or more")
    tried = [] if before is None else [before.best, *before.tried]
    problem, warnings = _problem(spec, kinds, load, [*starts, *[each.pool for each in tried]])
    made = _chosen("estimator", evaluate, ESTIMATORS) if isinstance(evaluate, str) else evaluate
    estimator = made(problem, confidence)
    run = _chosen("search", search, searches())
    space = Space(problem.kinds)
    possible = above_floor(problem, space.counts, shared=estimator.shares)
    starts = inside(problem, starts)
    guide = None if prior is None else _chosen("estimator", prior, ESTIMATORS)(problem, confidence)
    trials = Trials(estimator, problem.attainment, most=evaluations, record=record, known=known, told=told)
    task = Task(problem, space, possible, trials, seed, starts, guide, before)
    found = _Found(problem, space, possible, estimator, trials, _ended(run, task, estimator))
    return _summed_up(found, search, confidence, warnings)


def _ended(run: Search, task: Task, estimator: Estimator) -> Ending:
    """Run a search to its end; what the estimator has changed is left as the search has it, or so far."""
    trials, moved = task.trials, estimator if isinstance(estimator, Settles) else None
    try:
        ending = run(task)
    except BudgetSpent:
        ending = Ending(f"{trials.most} evaluations were made")
    except BaseException:
        # Ctrl-C, too: nobody wants a cluster to stay on whichever pool was being tried.
        if moved is not None:
            moved.abandon(None if trials.best is None else trials.best.pool)
        raise
    if moved is not None:
        moved.settle(None if trials.best is None else trials.best.pool)
    return ending


@dataclass(frozen=True, eq=False)
class _Found:
    """The results that a search leaves."""

    problem: Problem
    space: Space
    possible: Flags
    estimator: Estimator
    trials: Trials
    ending: Ending


def _summed_up(found: _Found, search: str, confidence: float, warnings: Sequence[str]) -> Plan:
    """Return the plan, with what is worth knowing beside its best pool."""
    problem, trials, estimator = found.problem, found.trials, found.estimator
    best, nearest = trials.best, trials.nearest
    unkept = best is None and found.ending.proven and not estimator.dear
    if not estimator.dear and (nearest is None or (best is None and found.ending.proven)):
        # Skipped pools may come nearer to the promise than those that were tried.
        most = estimator.evaluate(tuple(kind.most for kind in problem.kinds), whole=True)
        nearest = most if nearest is None or most.attainment > nearest.attainment else nearest
        nearest = estimator.evaluate(nearest.pool, whole=True)
    if estimator.dear:
        one_kind = _tried_of_one_kind(trials)
    else:
        one_kind = best_of_one_kind(problem, found.space, estimator)
    return Plan(
        kinds=tuple(kind.name for kind in problem.kinds),
        objective=problem.attainment,
        rate=problem.queries.rate,
        slo_ms=float(problem.queries.slo_ns.mean()) / 1e6,
        load=problem.load,
        search=search,
        evaluate=estimator.name,
        confidence=confidence,
        best=best,
        nearest=nearest,
        proven=found.ending.proven,
        ended=found.ending.why,
        one_kind=one_kind,
        floor_price=_floor(found),
        pools=len(found.space),
        below_floor=int(np.count_nonzero(~found.possible)),
        violating=trials.violating,
        warnings=tuple(warnings),
        advice=advise(problem, estimator, nearest) if unkept and nearest is not None else None,
        evaluations=tuple(trials.tried),
    )


def _floor(found: _Found) -> float | None:
    """Return the price below which no scheduler keeps the promise; None if none does within the bounds."""
    left = found.space.prices[found.possible]
    if not len(left):
        return None
    try:
        least = least_price(found.problem, shared=found.estimator.shares)
    except ModuleNotFoundError:
        least = None
    return max(float(left[0]), least or 0.0)


def _tried_of_one_kind(trials: Trials) -> Estimate | None:
    """Return the cheapest pool of one kind that was tried and holds."""
    alone = [
        each for each in trials.tried if sum(map(bool, each.pool)) == 1 and each.holds(trials.attainment)
    ]
    return min(alone, key=lambda each: each.price, default=None)


def best_of_one_kind(problem: Problem, space: Space, estimator: Estimator) -> Estimate | None:
    """Return the cheapest pool of one kind alone that holds, within the kinds' bounds."""
    found: Estimate | None = None
    for place, kind in enumerate(problem.kinds):
        for pool in space.of_one_kind(place):
            if found is not None and pool[place] * kind.price >= found.price:
                break
            if not above_floor(problem, np.array([pool], np.int64), shared=estimator.shares)[0]:
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


def _problem(
    spec: SimulationSpec, kinds: int, load: float, pools: Sequence[Pool]
) -> tuple[Problem, list[str]]:
    """Return the problem of a spec with at most ``kinds`` kinds, and warnings; raise `PlanError`.

    Bounds that the spec leaves open have room for ``pools``.
    """
    if kinds < 1:
        raise PlanError(f"a pool of {kinds} kinds has no device: give 1 or more")
    problem = read_problem(spec)
    problem = problem if load == 1.0 else problem.at_load(load)
    chosen = choose_kinds(problem, kinds)
    warnings = []
    if len(chosen) < len(problem.kinds):
        left_out = [kind.name for place, kind in enumerate(problem.kinds) if place not in chosen]
        warnings.append(
            f"{', '.join(left_out)} left out: of {len(problem.kinds)} kinds the {len(chosen)} are planned "
            "with that serve most for their price and are not much too slow (--kinds for more)"
        )
        problem = problem.with_kinds(chosen)
    warnings += _check_kinds(problem)
    return bounded(problem, pools), warnings


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
            f"{1 - shares[fastest]:.2%} of the queries within their SLO, and {problem.attainment} is "
            f"asked; its longest takes {told_ms(slowest_ns[fastest] / 1e6)}"
        )
    return [
        f"{kind.name} is too slow for {share:.2%} of the queries even when idle: its longest takes "
        f"{told_ms(slowest / 1e6)}"
        for kind, share, slowest in zip(problem.kinds, shares, slowest_ns, strict=True)
        if share
    ]


def _chosen(what: str, name: str, known: Mapping[str, Chosen]) -> Chosen:
    if name not in known:
        raise PlanError(f"there is no {what} {name!r}: choose {one_of(name, known)}")
    return known[name]


__all__ = ["Plan", "Pool", "plan"]
