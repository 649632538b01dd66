"""Which kinds are planned with, and the floor under every price."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.planner.floor import above_floor, least_price, shared_ns
from mainspring.planner.plan import choose_kinds, cost_effectiveness, plan
from mainspring.planner.problem import PlanError, read_problem
from mainspring.planner.writing import plot_plan
from mainspring.simulator.objective import Objective
from mainspring.simulator.spec import DeviceGroup, SimulationSpec
from tests.planner.specs import spec, workload

KINDS = (
    DeviceGroup(kind="fast", speed=4.0, price=0.526, most=4),
    DeviceGroup(kind="dear", speed=4.0, price=0.9, most=4),
    DeviceGroup(kind="cheap", speed=1.0, price=0.1, most=4),
    DeviceGroup(kind="slow", speed=0.2, price=0.001, most=4),
)


def many() -> SimulationSpec:
    return spec(devices=KINDS)


def test_the_most_cost_effective_kinds_are_chosen_that_are_not_much_too_slow() -> None:
    problem = read_problem(many())
    effective = cost_effectiveness(problem)
    mean_s = problem.durations_ns[0, problem.queries.counted :].mean() / 1e9
    assert effective[0] == pytest.approx(3600 / mean_s / 0.526)
    assert effective[3] == max(effective), "slow serves most for its price, and far too slowly"
    assert choose_kinds(problem, 2) == (0, 2)
    assert choose_kinds(problem, 3) == (0, 1, 2)
    assert choose_kinds(problem, 4) == (0, 1, 2, 3)
    must = (*KINDS[:3], msgspec.structs.replace(KINDS[3], least=1))
    assert 3 in choose_kinds(read_problem(spec(devices=must)), 2)


def test_a_plan_says_which_kinds_it_leaves_out() -> None:
    found = plan(many(), kinds=2)
    assert found.kinds == ("fast", "cheap")
    assert found.warnings[0].startswith("dear, slow left out: of 4 kinds the 2 are planned with")
    assert found.best is not None
    with pytest.raises(PlanError, match="a pool of 0 kinds"):
        plan(many(), kinds=0)


@pytest.mark.parametrize("shared", [False, True])
def test_no_pool_below_the_least_price_has_the_capacity(shared: bool) -> None:
    pytest.importorskip("scipy")
    for seed in range(3):
        problem = read_problem(spec(seed=seed, objective=Objective(attainment=0.9)))
        pools = np.array([pool for pool in itertools.product(range(6), range(7)) if any(pool)])
        possible = pools[above_floor(problem, pools, shared=shared)]
        least = least_price(problem, shared=shared)
        assert least is not None
        cheapest = min(problem.price(tuple(pool)) for pool in possible.tolist())
        assert least == pytest.approx(cheapest, rel=0.02)
    alone, together = (least_price(problem, shared=each) for each in (False, True))
    assert alone is not None
    assert together is not None
    assert together <= alone


def test_what_no_pool_can_do_has_no_least_price() -> None:
    pytest.importorskip("scipy")
    assert least_price(read_problem(spec(workload=workload(rate=5000))), shared=False) is None


def test_a_query_s_part_of_a_batch_is_never_more_than_its_own_time() -> None:
    problem = read_problem(spec())
    queries = problem.queries
    parts = shared_ns(problem.spec.devices, problem.models, queries.models, queries.rows)
    assert (parts <= problem.durations_ns * 1.001 + 1).all()
    whole = queries.rows == 500
    np.testing.assert_allclose(parts[:, whole], problem.durations_ns[:, whole], rtol=0.2)


def test_a_plan_has_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = plan(spec())
    assert [path.name for path in plot_plan(found, tmp_path)] == ["pools.png", "evaluations.png"]
    assert all(path.stat().st_size > 5_000 for path in tmp_path.iterdir())
    assert plot_plan(msgspec.structs.replace(found, evaluations=()), tmp_path) == []
