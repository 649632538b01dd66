"""Devices that steps share: the fewest of each kind that hold, and never more than the plan has."""

from __future__ import annotations

from mainspring.planner.graph_queues import GraphQueues, read_graph_problem
from mainspring.planner.inferline import inferline
from mainspring.planner.problem import Pool
from mainspring.planner.shared import SharedPools, share_devices
from tests.planner.test_graph_queues import pipeline


class Known(SharedPools):
    """Pools of which a table says what the simulation would."""

    def __init__(self, least: list[Pool]) -> None:
        super().__init__(read_graph_problem(pipeline()), 0.95)
        self._least = least

    def _simulated(self, pool: Pool) -> tuple[float, float]:
        holds = any(
            all(mine >= each for mine, each in zip(pool, least, strict=True)) for least in self._least
        )
        return (1.0, 1.0) if holds else (0.5, 0.5)


def test_the_dearest_kind_goes_first_and_then_what_that_leaves_of_the_others() -> None:
    found = share_devices(Known([(2, 9), (4, 3)]), (6, 12))
    assert found is not None
    assert found.pool == (2, 9)


def test_a_pool_that_does_not_hold_when_shared_is_no_plan() -> None:
    assert share_devices(Known([(7, 0)]), (6, 12)) is None


def test_one_kind_alone_may_hold_where_the_mixture_does_not() -> None:
    """Seven of the dear kind cost what six of it and fourteen of the cheap one do."""
    found = share_devices(Known([(7, 0)]), (6, 14))
    assert found is not None
    assert found.pool == (7, 0)


def test_simulations_are_bounded() -> None:
    known = Known([(1, 1)])
    assert share_devices(known, (20, 60), most=4) is not None
    assert len(known.tried) <= 4


def test_a_simulated_cluster_needs_no_more_than_the_plan_of_steps_that_own_theirs() -> None:
    problem = read_graph_problem(pipeline(duration_s=8))
    own = problem.pool(inferline(GraphQueues(problem)))
    pools = SharedPools(problem, 0.95)
    found = share_devices(pools, own, most=6)
    assert found is None or (found.price <= pools.price(own) and pools.holds(found.pool))
