"""The two estimators agree under first come, first served, with and without messages between processes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.planner.plan import plan
from mainspring.planner.problem import read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.simulated import Simulated
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import FaultsSpec, NetworkSpec, SimulationSpec
from tests.planner.specs import spec, workload

STEADY = FaultsSpec(duration_jitter=0)
FIRST_FREE = SchedulerConfig(policy="first-free")


def fcfs(delay_us: float = 0.0, **changes: object) -> SimulationSpec:
    network = NetworkSpec(delay_us=delay_us)
    return spec(scheduler=FIRST_FREE, network=network, faults=STEADY, **changes)


@pytest.mark.parametrize("pool", [(3, 0), (1, 6), (2, 3)])
def test_without_messages_they_are_the_same_query_for_query(pool: tuple[int, int]) -> None:
    problem = read_problem(fcfs(duration_s=5))
    queues, simulated = Queues(problem), Simulated(problem)
    mine, theirs = queues.evaluate(pool, whole=True), simulated.evaluate(pool, whole=True)
    assert mine.attainment == theirs.attainment
    assert mine.p99_ms == pytest.approx(theirs.p99_ms, abs=0.001)
    assert mine.p50_ms == pytest.approx(theirs.p50_ms, abs=0.001)
    assert mine.price == theirs.price
    for kind, share in mine.utilisation.items():
        assert share == pytest.approx(theirs.utilisation[kind], abs=0.03)


def test_messages_take_their_time_in_both() -> None:
    problem = read_problem(fcfs(delay_us=400, duration_s=8))
    for pool in ((3, 0), (1, 6)):
        mine = Queues(problem).evaluate(pool, whole=True)
        theirs = Simulated(problem).evaluate(pool, whole=True)
        bare = Queues(read_problem(fcfs(duration_s=8))).evaluate(pool, whole=True)
        assert mine.attainment == pytest.approx(theirs.attainment, abs=0.001)
        assert mine.p50_ms == pytest.approx(theirs.p50_ms, abs=0.05)
        assert mine.p50_ms > bare.p50_ms + 1.5


def test_a_clear_violation_ends_a_simulation_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.simulator.run.PROGRESS_EVERY_S", 0.0)
    simulated = Simulated(read_problem(fcfs()))
    early = simulated.evaluate((1, 1))
    assert not early.complete
    assert early.queries < simulated.evaluate((1, 1), whole=True).queries
    assert early.attainment < 0.98


def test_fewer_requests_are_served_better() -> None:
    simulated = Simulated(read_problem(fcfs(duration_s=5)))
    half, all_ = (simulated.evaluate((2, 0), whole=True, load=load) for load in (0.5, 1.0))
    assert half.attainment > all_.attainment
    assert half.queries == all_.queries


def test_the_policy_of_the_spec_decides_what_a_simulated_pool_does() -> None:
    given = fcfs(duration_s=5, workload=workload(rate=340))
    pool = (2, 2)
    own = msgspec.structs.replace(given, scheduler=SchedulerConfig(policy="mainspring"))
    first_free, deadlines = (
        Simulated(read_problem(each)).evaluate(pool, whole=True).attainment for each in (given, own)
    )
    assert first_free != deadlines


def test_a_plan_by_simulation_holds_in_simulation() -> None:
    found = plan(fcfs(duration_s=5), evaluate="simulate", confidence=0)
    quick = plan(fcfs(duration_s=5), confidence=0)
    assert found.best is not None
    assert quick.best is not None
    assert found.best.pool == quick.best.pool
    assert found.evaluate == "simulate"
    assert np.isclose(found.best.attainment, quick.best.attainment)
