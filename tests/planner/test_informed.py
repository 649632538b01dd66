"""The search guided by an estimator that is off: few evaluations, hardly any violating, and the optimum."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from mainspring.planner.floor import Space, above_floor
from mainspring.planner.informed import Belief, informed
from mainspring.planner.plan import plan
from mainspring.planner.problem import PlanError, Problem, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.search import Before, Task, Trials
from tests.planner.specs import spec, workload


def problem() -> Problem:
    return read_problem(spec(workload=workload(rate=200), duration_s=20))


def off(problem: Problem, factors: list[float]) -> Problem:
    """Return a problem whose kinds take ``factors`` times as long."""
    durations_ns = (problem.durations_ns * np.array(factors)[:, None]).astype(np.int64)
    return dataclasses.replace(problem, durations_ns=durations_ns)


def task(truth: Problem, expected: Problem, before: Before | None = None) -> Task:
    space = Space(truth.kinds)
    trials = Trials(Queues(truth, confidence=0.0), truth.attainment)
    possible = np.ones(len(space), np.bool_)
    return Task(truth, space, possible, trials, prior=Queues(expected, confidence=0.0), before=before)


def test_few_pools_are_tried_although_every_kind_is_off_its_profile() -> None:
    expected, violating, dearer = problem(), 0, []
    for seed in range(6):
        truth = off(expected, np.random.default_rng(seed).uniform(0.9, 1.1, 2).tolist())
        given = task(truth, expected)
        informed(given)
        best, queues = given.trials.best, Queues(truth, 0.0)
        assert best is not None
        exact = next(pool for pool in Space(truth.kinds).pools() if queues.evaluate(pool).holds(0.99))
        dearer.append(best.price / truth.price(exact) - 1)
        assert len(given.trials.tried) <= 8
        violating += given.trials.violating
    assert violating <= 12
    assert np.mean(dearer) < 0.1, "a pool of so few devices costs much more than the next"


def test_the_estimated_optimum_is_tried_first_and_is_the_plan_where_the_estimator_is_right() -> None:
    asked = problem()
    optimum = plan(asked.spec, confidence=0).best
    assert optimum is not None
    given = task(asked, asked)
    informed(given)
    assert given.trials.tried[0].pool == optimum.pool
    assert given.trials.best is not None
    assert given.trials.best.pool == optimum.pool


def test_what_was_learnt_holds_at_another_load() -> None:
    expected = problem()
    truth = off(expected, [1.1, 1.1])
    first = task(truth, expected)
    informed(first)
    assert first.trials.best is not None
    violating = [0, 0]
    for more in (1.15, 1.2, 1.25, 1.35, 1.4):
        before = Before(tuple(first.trials.tried), first.trials.best, more)
        taught, alone = [task(truth.at_load(more), expected.at_load(more), told) for told in (before, None)]
        for place, each in enumerate((taught, alone)):
            informed(each)
            violating[place] += each.trials.violating
        assert taught.trials.best is not None
        assert alone.trials.best is not None
        assert len(taught.trials.tried) <= len(alone.trials.tried)
        assert taught.trials.best.price <= alone.trials.best.price
    assert violating[0] < violating[1]


def test_a_pool_of_which_nothing_was_counted_teaches_nothing() -> None:
    asked = problem()
    belief = Belief(Queues(asked, confidence=0.0), 1.0 / asked.durations_ns.mean(axis=1))
    before = belief.expected((2, 2)), belief.chance((2, 2), 0.99)
    seen = Queues(asked, confidence=0.0).evaluate((2, 2))
    belief.learn(msgspec.structs.replace(seen, attainment=0.0, queries=0, complete=False))
    assert (belief.expected((2, 2)), belief.chance((2, 2), 0.99)) == before


def test_without_an_estimator_it_says_what_is_missing() -> None:
    with pytest.raises(PlanError, match="--prior queues"):
        plan(spec(), search="informed")
    found = plan(spec(), search="informed", prior="queues")
    assert found.best is not None
    assert above_floor(read_problem(spec()), np.array([found.best.pool])).all()
