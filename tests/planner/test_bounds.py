"""How many devices of a kind a pool may have where the spec does not say."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.planner.plan import IMPROVES, MOST, bounded, plan
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.queues import Queues
from mainspring.simulator.spec import DeviceGroup, SimulationSpec
from tests.planner.specs import spec, workload


def without(most: int | None = None, least: int = 0) -> SimulationSpec:
    """Return the usual spec without bounds, but for the first kind's if it is given."""
    first, second = (msgspec.structs.replace(each, most=None) for each in spec().devices)
    return spec(devices=(msgspec.structs.replace(first, most=most, least=least), second))


def test_more_of_the_kind_alone_improve_nothing_and_one_fewer_does_worse() -> None:
    problem = bounded(read_problem(without()))
    queues = Queues(problem)

    def share(place: int, count: int) -> float:
        pool = tuple(count * (each == place) for each in range(2))
        return queues.evaluate(pool, whole=True).attainment

    for place, kind in enumerate(problem.kinds):
        most = share(place, MOST)
        assert share(place, kind.most) >= most - IMPROVES > share(place, kind.most - 1)


def test_a_bound_that_the_spec_gives_stays() -> None:
    assert bounded(read_problem(without(most=1))).kinds[0].most == 1


@pytest.mark.parametrize(("pools", "most"), [([(40, 1)], 40), ([(1, 2, 3)], 3)])
def test_a_bound_has_room_for_what_the_spec_demands_and_for_given_pools(pools: list[Pool], most: int) -> None:
    assert bounded(read_problem(without(least=3)), pools).kinds[0].most == most


def test_a_kind_that_ends_nothing_in_time_has_one_device_at_most() -> None:
    first, second = without().devices
    slow = DeviceGroup(kind="slow", speed=0.01, price=0.001)
    found = plan(spec(devices=(first, second, slow), workload=workload(rate=100)))
    assert found.best is not None
    assert bounded(read_problem(spec(devices=(first, second, slow)))).kinds[2].most == 1


def test_a_plan_without_bounds_is_no_dearer_than_one_within_bounds() -> None:
    within, free = plan(spec()), plan(without())
    assert within.best is not None
    assert free.best is not None
    assert free.best.price <= within.best.price


def test_a_search_may_begin_with_a_pool_beyond_what_improves_anything() -> None:
    found = plan(without(), search="ribbon", starts=[(9, 20)], evaluations=4)
    assert found.evaluations[0].pool == (9, 20)
