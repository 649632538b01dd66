"""The searches for graphs: they keep the promise, can't be improved by one action, and name what can't be."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from mainspring.planner.graph_queues import Configuration, GraphQueues, Station, read_graph_problem
from mainspring.planner.inferline import (
    InfeasibleSloError,
    batches,
    cost,
    exact,
    inferline,
    initial,
    plan_graph,
)
from mainspring.planner.problem import PlanError
from mainspring.simulator.graph_groups import GraphGroup, GraphStep
from mainspring.simulator.spec import DeviceGroup, WorkloadSpec
from tests.planner.test_graph_queues import pipeline


def estimator(slo_ms: float = 120, rate: float = 150, cv: float = 2, **changes: Any) -> GraphQueues:
    workload = (WorkloadSpec(models="plates", kind="gamma", cv=cv, rate=rate, slo_ms=slo_ms),)
    return GraphQueues(read_graph_problem(pipeline(workload=workload, **changes)))


@cache
def planned(slo_ms: float) -> tuple[GraphQueues, Configuration]:
    made = estimator(slo_ms)
    return made, inferline(made)


def test_the_first_configuration_keeps_the_promise_on_the_fastest_kind_one_by_one() -> None:
    made = estimator(60)
    found = initial(made)
    assert made.holds(found)
    assert {(each.kind, each.batch) for each in found} == {(0, 1)}


@pytest.mark.parametrize("slo_ms", [30, 60, 120, 400])
def test_no_single_action_makes_the_plan_cheaper(slo_ms: float) -> None:
    made, found = planned(slo_ms)
    assert made.holds(found)
    for place, station in enumerate(found):
        for kind, batch, replicas in [
            (station.kind, station.batch, station.replicas - 1),
            *[(1, batch, count) for batch in batches(made.problem, place, 1) for count in (1, 2, 4, 8, 12)],
        ]:
            other = (*found[:place], Station(kind, batch, max(1, replicas)), *found[place + 1 :])
            cheaper = cost(made.problem, other) < cost(made.problem, found)
            assert not (cheaper and made.holds(other)), other


def test_a_looser_slo_costs_less_because_steps_move_to_a_cheaper_kind() -> None:
    prices = [planned(slo_ms)[0].problem.price(planned(slo_ms)[1]) for slo_ms in (30, 60, 120, 400)]
    assert prices == sorted(prices, reverse=True)
    assert prices[-1] < prices[0] / 2
    assert any(each.kind == 1 for each in planned(400)[1])


def test_a_downgrade_tries_every_cheaper_kind() -> None:
    """The next cheaper kind is too slow, and the cheapest is not."""
    kinds = (
        DeviceGroup(kind="gpu", price=0.7),
        DeviceGroup(kind="slow", price=0.5, speed=0.01),
        DeviceGroup(kind="small", price=0.2, speed=0.5),
    )
    found = inferline(estimator(120, devices=kinds))
    assert {each.kind for each in found} <= {0, 2}
    assert any(each.kind == 2 for each in found)


def test_the_exact_search_is_never_dearer_and_tells_the_gap() -> None:
    made, greedy = planned(400)
    found, proven = exact(made, greedy)
    assert proven
    assert made.holds(found)
    assert made.problem.price(found) < made.problem.price(greedy)
    told = plan_graph(made, "exact")
    assert told.gap == pytest.approx(made.problem.price(greedy) / made.problem.price(found) - 1)
    assert not plan_graph(made, "exact", evaluations=1).proven


def test_exact_is_for_three_steps() -> None:
    steps = tuple(GraphStep(model="word", name=name) for name in "abcd")
    four = estimator(graphs=(GraphGroup(name="plates", steps=steps),))
    with pytest.raises(PlanError, match="up to 3 steps, and plates has 4: take inferline"):
        plan_graph(four, "exact")


def test_an_slo_below_the_service_time_names_the_least_and_its_step() -> None:
    with pytest.raises(InfeasibleSloError, match="of which step 'detect' takes most") as raised:
        plan_graph(estimator(10))
    least_ms = raised.value.least_ms
    assert 15 < least_ms < 17
    assert plan_graph(estimator(least_ms * 1.2, rate=60, cv=1)).feasible


def test_too_few_devices_say_what_it_would_take_and_what_they_carry() -> None:
    kinds = tuple(
        msgspec.structs.replace(group, most=most)
        for group, most in zip(pipeline().devices, (2, 2), strict=True)
    )
    found = plan_graph(estimator(60, cv=1, rate=300, devices=kinds))
    assert not found.feasible
    assert found.beyond
    assert found.most_rate is not None
    assert 20 < found.most_rate < 300
    fewer = plan_graph(estimator(60, cv=1, rate=found.most_rate * 0.9, devices=kinds, duration_s=60))
    assert fewer.feasible


def test_within_its_bounds_a_plan_takes_another_kind_than_the_cheapest() -> None:
    kinds = (DeviceGroup(kind="gpu", price=0.7), DeviceGroup(kind="cpu", price=0.05, speed=0.1, most=1))
    found = plan_graph(estimator(400, devices=kinds))
    assert found.feasible
    assert sum(each.replicas for each in found.best.stations if each.kind == 1) <= 1


def test_another_search_is_refused() -> None:
    with pytest.raises(PlanError, match="inferline or exact, not ribbon"):
        plan_graph(estimator(), "ribbon")
