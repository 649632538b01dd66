"""How many pools each search tries until it finds the cheapest, over seeds (figures 10, 13 and 14).

Every search begins with the same two pools: the best of one kind, on which the service is said to run already
(Ribbon, section 3.2), and one that is drawn.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Setting, spec_of
from mainspring.experiments.ribbon.memo import Arena, prices_of
from mainspring.experiments.ribbon.samplers import SAMPLERS, sampled
from mainspring.planner.estimate import Estimate
from mainspring.planner.problem import read_problem

SAMPLED_SEEDS = 20
"""Seeds of Optuna's searches at most: a suggestion takes as long as ten evaluations."""
SEARCHES = ("ribbon", "random", "hill-climb", "rsm", *SAMPLERS, "exact")
SAVINGS = (0.25, 0.5, 0.75, 1.0)
"""Parts of the greatest saving, of which figure 10 shows how many evaluations each takes."""


class Convergence(msgspec.Struct, frozen=True, kw_only=True):
    """What one search did on one model, over seeds."""

    model: str
    search: str
    seeds: int
    found: int
    """Seeds of which the search found the cheapest pool."""
    until_found: float | None
    """The mean number of evaluations until then, of those that found it."""
    most_until_found: int
    violating: float | None
    """How many of these evaluations violated, on average."""
    evaluations: float
    """The mean number until the search ended by itself."""
    explored: float | None
    """What the evaluations until then cost, as a part of what those of all pools do (figure 13)."""
    ruled_out: int
    """Seeds whose evaluations had active pruning rule out the cheapest pool, before or after it was found."""
    until_saved: tuple[float | None, ...] = ()
    """The mean number of evaluations until each of `SAVINGS` was reached (figure 10)."""
    paper: int
    """The paper's mean number of evaluations, of ribbon."""


class Pruning(msgspec.Struct, frozen=True, kw_only=True):
    """What active pruning by clear violations rules out, over all pools of a model."""

    model: str
    pools: int
    clear: int
    """Pools that violate by more than a point."""
    wrong: int
    """Those within which the cheapest pool that holds is."""


def convergence(
    setting: Setting,
    seeds: int,
    folder: Path,
    names: tuple[str, ...] = SEARCHES,
    shared: Path = SHARED,
) -> tuple[list[Convergence], Pruning]:
    """Run searches on a model by the paper's rule, the bare share, and with the artifact's target.

    Searches by Optuna are left out where that is not installed.
    """
    arena = Arena(read_problem(spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared)))
    found = []
    for name in names:
        runs = _runs(name, arena, seeds)
        if runs:
            found.append(_summed_up(setting, name, runs, arena))
    clear, wrong = arena.pruned_wrongly()
    return found, Pruning(model=setting.name, pools=len(arena.space), clear=clear, wrong=wrong)


def _runs(name: str, arena: Arena, seeds: int) -> list[list[Estimate]]:
    """Return what a search tried under each seed."""
    if name in SAMPLERS:
        tried = (sampled(arena, name, seed) for seed in range(min(seeds, SAMPLED_SEEDS)))
        return [each for each in tried if each is not None]
    return [
        arena.run(name, seed, arena.starts(seed)).tried for seed in range(1 if name == "exact" else seeds)
    ]


def _summed_up(setting: Setting, name: str, runs: list[list[Estimate]], arena: Arena) -> Convergence:
    until, violating, cost = [], [], []
    for tried in runs:
        place = next((place for place, each in enumerate(tried) if each.pool == arena.best.pool), None)
        if place is not None:
            until.append(place + 1)
            violating.append(sum(not each.holds(arena.problem.attainment) for each in tried[:place]))
            cost.append(float(prices_of(tried[: place + 1]).sum()))
    return Convergence(
        model=setting.name,
        search=name,
        seeds=len(runs),
        found=len(until),
        until_found=_mean(until),
        most_until_found=max(until, default=0),
        violating=_mean(violating),
        evaluations=float(np.mean([len(tried) for tried in runs])),
        explored=float(np.mean(cost) / arena.space.prices.sum()) if cost else None,
        ruled_out=sum(arena.ruled_out(tried) for tried in runs),
        until_saved=_until_saved(runs, arena),
        paper=setting.evaluations,
    )


def _until_saved(runs: list[list[Estimate]], arena: Arena) -> tuple[float | None, ...]:
    """Return the mean number of evaluations until each part of the greatest saving was reached."""
    one = arena.one_kind()
    if one is None:
        return ()
    found = []
    for part in SAVINGS:
        price = one.price - part * (one.price - arena.best.price) + 1e-9
        places = []
        for tried in runs:
            reached = (each.price <= price and each.holds(arena.problem.attainment) for each in tried)
            places.append(next((place + 1 for place, good in enumerate(reached) if good), math.nan))
        found.append(_mean([each for each in places if not math.isnan(each)]))
    return tuple(found)


def _mean(values: list[int] | list[float]) -> float | None:
    return float(np.mean(values)) if values else None
