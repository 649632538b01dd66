"""How many pools each search tries until it finds the cheapest, over seeds (figures 10 and 13)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Setting, spec_of
from mainspring.planner.estimate import Estimate
from mainspring.planner.pools.floor import above_floor
from mainspring.planner.pools.search import Task, searches
from mainspring.planner.pools.space import Space
from mainspring.planner.pools.trials import Trials
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.queues import Queues

SEARCHES = ("ribbon", "random", "hill-climb", "rsm", "exact")


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
    """`until_found` as a part of all pools."""
    paper: int
    """The paper's mean number of evaluations, of ribbon."""


class Remembered:
    """Estimates each pool once for all searches."""

    name = "queues"
    dear = False
    shares = False

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._known: dict[tuple[Pool, float], Estimate] = {}

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        """Return a pool's estimate, played to its end: as `Estimator.evaluate`."""
        del whole
        if (pool, load) not in self._known:
            self._known[pool, load] = self._queues.evaluate(pool, whole=True, load=load)
        return self._known[pool, load]


def convergence(
    setting: Setting, seeds: int, folder: Path, names: tuple[str, ...] = SEARCHES, shared: Path = SHARED
) -> list[Convergence]:
    """Run searches on a model by the paper's rule, the bare share, and with the artifact's target."""
    problem = read_problem(spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared))
    space, estimator = Space(problem.kinds), Remembered(Queues(problem, confidence=0.0))
    possible = above_floor(problem, space.counts)

    def run(name: str, seed: int) -> Trials:
        trials = Trials(estimator, problem.attainment)
        searches()[name](Task(problem, space, possible, trials, seed))
        return trials

    best = run("exact", 0).best
    assert best is not None, "some pool within the bounds holds"
    found = []
    for name in names:
        runs = [run(name, seed) for seed in range(1 if name == "exact" else seeds)]
        found.append(_summed_up(setting, name, runs, best, len(space)))
    return found


def _summed_up(setting: Setting, name: str, runs: list[Trials], best: Estimate, pools: int) -> Convergence:
    until, violating = [], []
    for trials in runs:
        places = [place for place, each in enumerate(trials.tried) if each.pool == best.pool]
        if places:
            until.append(places[0] + 1)
            violating.append(sum(not each.holds(trials.attainment) for each in trials.tried[: places[0]]))
    mean = float(np.mean(until)) if until else None
    return Convergence(
        model=setting.name,
        search=name,
        seeds=len(runs),
        found=len(until),
        until_found=mean,
        most_until_found=max(until, default=0),
        violating=float(np.mean(violating)) if violating else None,
        evaluations=float(np.mean([len(trials.tried) for trials in runs])),
        explored=None if mean is None else mean / pools,
        paper=setting.evaluations,
    )
