"""Load change (figure 16): how many pools `ribbon` tries for half as much load again, after a first search.

The bounds of both searches hold the pools of the greater load.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Setting, spec_of
from mainspring.experiments.ribbon.memo import Arena
from mainspring.planner.pools.search import Before
from mainspring.planner.problem import Problem, read_problem

LOAD = 1.5


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What two searches did, one after the other, over seeds with which both found the cheapest pool."""

    model: str
    seeds: int
    found: int
    first: float
    """Evaluations until the cheapest pool of the first load, on average."""
    second: float
    """Likewise for the load after."""
    afresh: float
    """Evaluations until that pool by a search that knows nothing of the first, on average; all that it made,
    where it did not find the pool."""
    first_of_series: int = 0
    """Evaluations of the first search of one seed."""
    series: list[tuple[float, float]] = []
    """What that seed tried after the change until it had the cheapest pool: price as a part of the optimum's
    before, and share in time."""


def changed(setting: Setting, seeds: int, folder: Path, shared: Path = SHARED) -> Changed:
    """Search, change the load, and search again."""
    problem = wider(read_problem(spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared)))
    first, second = Arena(problem), Arena(problem.at_load(LOAD))
    counts: list[tuple[int, int, int]] = []
    series: list[tuple[float, float]] = []
    for seed in range(seeds):
        runs = first.run("ribbon", seed, first.starts(seed), to_end=False)
        if not (until := first.until(runs)):
            continue
        before = Before(tuple(runs.tried), first.best, LOAD)
        again = second.run("ribbon", seed, before=before, to_end=False)
        fresh = second.run("ribbon", seed, second.starts(seed), to_end=False)
        if second.until(again):
            counts.append((until, second.until(again), len(fresh.tried)))
            if not series:
                tried = again.tried[: second.until(again)]
                series = [(each.price / first.best.price, each.attainment) for each in tried]
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
