"""The search `informed` where the estimator is off: every kind up to 10 % slower or faster than its profile.

What is evaluated is the pool with kinds as they are; the estimator, the search's prior, has the profiles.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Setting, spec_of
from mainspring.experiments.ribbon.memo import Remembered
from mainspring.planner.pools.floor import above_floor
from mainspring.planner.pools.search import Task, searches
from mainspring.planner.pools.space import Space
from mainspring.planner.pools.trials import Trials
from mainspring.planner.problem import Problem, read_problem
from mainspring.planner.queues import Queues

OFF = 0.1
MOST_EVALUATIONS, MOST_VIOLATING = 8, 2


class Guided(msgspec.Struct, frozen=True, kw_only=True):
    """What the search did on one model, over trials."""

    model: str
    trials: int
    within: int
    """Trials of at most `MOST_EVALUATIONS` evaluations, `MOST_VIOLATING` of them violating."""
    optimum: int
    """Trials that ended on the cheapest pool that holds."""
    dearer: float
    """By how much more than that the plans cost, on average, as a part of it."""
    evaluations: float
    most_evaluations: int
    violating: float
    most_violating: int


def guided(setting: Setting, trials: int, folder: Path, shared: Path = SHARED) -> Guided:
    """Search on devices that are off their profiles, each trial's differently."""
    problem = read_problem(spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared))
    space, prior = Space(problem.kinds), Remembered(Queues(problem, confidence=0.0))
    possible = above_floor(problem, space.counts)
    dearer, tried, violating = [], [], []
    for trial in range(trials):
        truth = Queues(slower(problem, trial), confidence=0.0)
        runs = Trials(truth, problem.attainment)
        searches()["informed"](Task(problem, space, possible, runs, trial, prior=prior))
        exact = Trials(truth, problem.attainment)
        searches()["exact"](Task(problem, space, possible, exact, trial))
        assert exact.best is not None, "some pool within the bounds holds"
        dearer.append(runs.best.price / exact.best.price - 1 if runs.best is not None else np.inf)
        tried.append(len(runs.tried))
        violating.append(runs.violating)
    good = [
        few <= MOST_EVALUATIONS and bad <= MOST_VIOLATING for few, bad in zip(tried, violating, strict=True)
    ]
    return Guided(
        model=setting.name,
        trials=trials,
        within=sum(good),
        optimum=sum(each < 1e-9 for each in dearer),
        dearer=float(np.mean(dearer)),
        evaluations=float(np.mean(tried)),
        most_evaluations=max(tried),
        violating=float(np.mean(violating)),
        most_violating=max(violating),
    )


def slower(problem: Problem, seed: int) -> Problem:
    """Return the problem on devices of which each kind is up to `OFF` slower or faster."""
    factors = np.random.default_rng(seed).uniform(1 - OFF, 1 + OFF, len(problem.kinds))
    durations_ns = np.rint(problem.durations_ns * factors[:, None]).astype(np.int64)
    return dataclasses.replace(problem, durations_ns=durations_ns)
