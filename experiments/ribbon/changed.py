"""Load change (figure 16): how many pools `ribbon` tries for half as much load again, after a first search.

The bounds of both searches hold the pools of the greater load.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Setting, spec_of
from mainspring.experiments.ribbon.memo import Remembered
from mainspring.planner.pools.floor import above_floor
from mainspring.planner.pools.search import Before, Task, searches
from mainspring.planner.pools.space import Space
from mainspring.planner.pools.trials import Trials
from mainspring.planner.problem import Problem, read_problem
from mainspring.planner.queues import Queues

LOAD = 1.5


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What two searches did, one after the other, over seeds that both found the cheapest pool."""

    model: str
    seeds: int
    found: int
    first: float
    """Evaluations until the cheapest pool of the first load, on average."""
    second: float
    """Likewise for the load after."""
    afresh: float
    """Evaluations until that pool by a search that knows nothing of the first, on average."""
    first_of_series: int = 0
    """Evaluations of the first search of one seed."""
    series: list[tuple[float, float]] = []
    """What that seed tried after the change: price as a part of the optimum's before, and share in time."""


def changed(setting: Setting, seeds: int, folder: Path, shared: Path = SHARED) -> Changed:
    """Search, change the load, and search again."""
    problem = wider(read_problem(spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared)))
    first, second = _Load(problem), _Load(problem.at_load(LOAD))
    counts: list[tuple[int, int, int]] = []
    series: list[tuple[float, float]] = []
    for seed in range(seeds):
        runs = first.run("ribbon", seed, None)
        if runs.best is None or runs.best.pool != first.optimum:
            continue
        tried = tuple(runs.tried[: first.until(runs)])
        again = second.run("ribbon", seed, Before(tried, runs.best, LOAD))
        fresh = second.run("ribbon", seed, None)
        if second.until(again) and second.until(fresh):
            counts.append((len(tried), second.until(again), second.until(fresh)))
            if not series:
                series = [(each.price / runs.best.price, each.attainment) for each in again.tried]
    means = np.mean(counts, axis=0) if counts else np.zeros(3)
    return Changed(
        model=setting.name,
        seeds=seeds,
        found=len(counts),
        first=float(means[0]),
        second=float(means[1]),
        afresh=float(means[2]),
        first_of_series=counts[0][0] if counts else 0,
        series=series,
    )


def wider(problem: Problem) -> Problem:
    """Return the problem with bounds for the greater load."""
    devices = [
        msgspec.structs.replace(group, most=math.ceil(LOAD * (group.most or 0)))
        for group in problem.spec.devices
    ]
    return read_problem(msgspec.structs.replace(problem.spec, devices=tuple(devices)))


class _Load:
    """One load, with what is known of its pools."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._space = Space(problem.kinds)
        self._estimator = Remembered(Queues(problem, confidence=0.0))
        self._possible = above_floor(problem, self._space.counts)
        best = self.run("exact", 0, None).best
        assert best is not None, "some pool within the bounds holds"
        self.optimum = best.pool

    def run(self, name: str, seed: int, before: Before | None) -> Trials:
        """Return what a search tried."""
        trials = Trials(self._estimator, self._problem.attainment)
        searches()[name](Task(self._problem, self._space, self._possible, trials, seed, before=before))
        return trials

    def until(self, trials: Trials) -> int:
        """Return how many evaluations it took to the optimum; 0 if it was not found."""
        pools = [each.pool for each in trials.tried]
        return pools.index(self.optimum) + 1 if self.optimum in pools else 0
