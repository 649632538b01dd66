"""Intervals: they hold what is true as often as they say, of queries that wait together too."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.planner.estimate import THETA, interval, most_late
from mainspring.planner.problem import read_problem
from mainspring.planner.queues import Queues
from tests.planner.specs import spec, workload


@pytest.mark.parametrize("run", [1, 40])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(run: int) -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        # Runs of queries that are late together, of a mean length; 0.97 are in time.
        late = rng.random(12_000 // run) < 0.03
        low, high = interval(~np.repeat(late, run), 0.95)
        held += low <= 0.97 <= high
    assert held >= 180, "of 200, with 190 expected"


def test_without_confidence_the_share_decides() -> None:
    in_time = np.arange(1000) >= 10
    assert interval(in_time, 0.0) == (0.99, 0.99)
    low, high = interval(np.ones(1000, np.bool_), 0.95)
    assert 0.99 < low < 1.0 == high


def test_a_clear_violation_ends_early_and_is_one() -> None:
    problem = read_problem(spec())
    queues = Queues(problem)
    early, whole = queues.evaluate((1, 1)), queues.evaluate((1, 1), whole=True)
    assert not early.complete
    assert whole.complete
    assert early.queries < whole.queries
    assert whole.attainment < problem.attainment - THETA
    assert not early.holds(problem.attainment)
    assert most_late(1000, 0.99) == 20


def test_an_estimate_says_how_busy_each_kind_was() -> None:
    problem = read_problem(spec(workload=workload(rate=100), duration_s=60))
    estimate = Queues(problem).evaluate((1, 2), whole=True)
    busy_s = problem.durations_ns[:, :].sum(axis=1) / 1e9
    assert estimate.price == pytest.approx(0.726)
    assert set(estimate.utilisation) == {"fast", "cheap"}
    by_work = sum(
        share * count * 61 / work
        for share, count, work in zip(estimate.utilisation.values(), (1, 2), busy_s, strict=True)
    )
    assert by_work == pytest.approx(1.0, abs=0.1), "every query is computed by one of the kinds"
    assert estimate.p50_ms < estimate.p99_ms


def test_fewer_queries_wait_less() -> None:
    queues = Queues(read_problem(spec()))
    attained = [queues.evaluate((2, 0), whole=True, load=load).attainment for load in (0.2, 0.5, 1.0)]
    assert attained == sorted(attained, reverse=True)
    assert attained[0] > attained[-1]
