"""Replicas that change in virtual time: as fixed ones where none does, and what comes and goes."""

from __future__ import annotations

import numpy as np

from mainspring.planner.graph_queues import GraphQueues, Station, read_graph_problem
from mainspring.planner.inferline import inferline, sample_of
from mainspring.planner.tuned import Change, play_changes, play_station, servers, tuned_changes
from mainspring.planner.tuner import SECOND_NS
from mainspring.simulator.spec import WorkloadSpec
from tests.planner.test_graph_queues import pipeline

STATIONS = (Station(0, 4, 3), Station(0, 2, 1), Station(1, 1, 3))
REPLICAS = tuple(each.replicas for each in STATIONS)


def test_replicas_that_never_change_serve_as_the_estimator_says() -> None:
    problem = read_graph_problem(pipeline())
    found = play_changes(problem, STATIONS, [Change(0, REPLICAS)])
    expected = GraphQueues(problem).latencies_ns(STATIONS)
    assert expected is not None
    assert np.array_equal(found.latency_ns, expected)
    hours = int(problem.queries.due_ns[-1]) / 3.6e12
    assert np.isclose(found.cost, problem.price(STATIONS) * hours)


def test_a_replica_serves_once_it_has_started_and_nothing_more_once_it_is_to_go() -> None:
    changes = [Change(0, (1,)), Change(10, (2,)), Change(40, (1,))]
    mine = servers(changes, 0, activation_ns=5)
    assert (mine.asked_ns, mine.from_ns, mine.until_ns[1]) == ([0, 10], [0, 15], 40)
    items = np.array([0, 11, 12, 38, 41, 42], np.int64)
    done, paid = play_station(items, np.full(6, 10, np.int64), np.ones(2), mine, 0)
    # The second begins at 15; from 40 on it begins nothing, so that all wait for the first.
    assert done.tolist() == [10, 21, 25, 48, 58, 68]
    assert paid == 42 + 30


def test_the_tuner_follows_a_rise_and_a_fall_and_keeps_the_promise() -> None:
    steady = WorkloadSpec(models="plates", kind="gamma", cv=1, rate=100, slo_ms=200)
    sample = read_graph_problem(pipeline(workload=(steady,), duration_s=60))
    found = inferline(GraphQueues(sample))
    rng = np.random.default_rng(3)
    gaps = [rng.exponential(1 / rate, int(rate * 60)) for rate in (100, 200, 100, 100)]
    arrivals_ns = np.rint(np.cumsum(np.concatenate(gaps)) * 1e9).astype(np.int64)
    changes = tuned_changes(sample_of(sample, found), arrivals_ns)
    totals = [sum(change.replicas) for change in changes]
    assert max(totals) >= 1.5 * totals[0]
    assert totals[-1] < max(totals)
    in_force = [sum(each.replicas) for each in changes if each.at_ns <= 66 * SECOND_NS]
    assert in_force[-1] >= 1.5 * totals[0]
