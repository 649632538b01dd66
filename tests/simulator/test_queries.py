"""Requests with many rows beside ordinary ones, in a whole simulated cluster."""

from __future__ import annotations

import numpy as np

from mainspring.messages.codes import Reason
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.scenario import MILLISECOND, SECOND
from mainspring.simulator.simulation import Simulation
from tests.fuzz import seeded
from tests.scheduler.hand import spec

WORKERS = 4
LENGTH_NS = 20 * SECOND
ROWS_PER_S = 400 * WORKERS
"""What the workers can do: a batch of 4 rows takes 10 ms."""


def play(seed: int, load: float, rows: int = 80) -> Simulation:
    """Play a half of the load as requests of one row, and a half as requests of many."""
    rng = np.random.default_rng(seed)
    simulation = Simulation(
        SchedulerConfig(),
        [spec("m"), spec("n")],
        [(f"w{number}", "gpu", 4) for number in range(WORKERS)],
        seed=seed,
        validate_every=500,
    )
    request_id, half = 0, load * ROWS_PER_S / 2
    for each, slo_ms in ((1, (60, 200)), (rows, (300, 900))):
        when_ns = 0.5 * SECOND
        while (when_ns := when_ns + rng.exponential(each / half) * SECOND) < LENGTH_NS:
            request_id += 1
            slo_ns = int(rng.uniform(*slo_ms) * MILLISECOND)
            simulation.request(int(when_ns), request_id, "m", each, slo_ns)
    simulation.run(LENGTH_NS + 5 * SECOND)
    simulation.validate()
    return simulation


@seeded(2)
def test_requests_of_many_rows_are_in_time_as_a_whole_or_refused_at_once(seed: int) -> None:
    simulation = play(seed, 0.8)
    outcomes = list(simulation.outcomes.values())
    assert {each.answers for each in outcomes} == {1}
    many = [each for each in outcomes if each.request.rows > 1]
    in_time = [each for each in many if each.in_time]
    at_once = [each for each in many if each.reason is Reason.DEADLINE_UNREACHABLE]
    assert len(many) > 80
    assert len(in_time) > 0.85 * len(many)
    assert len(in_time) + len(at_once) > 0.85 * len(many), "few are begun in vain"
    ordinary = [each for each in outcomes if each.request.rows == 1]
    assert sum(each.in_time for each in ordinary) > 0.95 * len(ordinary)
    assert not simulation.scheduler.cluster.queries


@seeded(2)
def test_under_overload_each_has_its_one_reply_and_others_are_served_as_before(seed: int) -> None:
    simulation = play(seed, 1.6)
    outcomes = list(simulation.outcomes.values())
    assert {each.answers for each in outcomes} == {1}
    ordinary = [each for each in outcomes if each.request.rows == 1]
    assert sum(each.in_time for each in ordinary) > 0.95 * len(ordinary)
    assert not simulation.scheduler.cluster.queries
