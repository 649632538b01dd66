"""Exactly one reply to each request in time, whatever dies: three real cores in one simulated cluster.

The scheduler, the workers' cores and the gateway's core are those of the live processes; a failing seed is a
complete report.
"""

from __future__ import annotations

import numpy as np

from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.gateway import BEST_EFFORT_NS, GRACE_NS, piece_id
from mainspring.simulator.gateway_core import CoreGateway
from mainspring.simulator.scenario import MILLISECOND, SECOND, random_model
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded
from tests.simulator.played import Stream

LENGTH_NS = 2 * SECOND
WORKERS = 3
REQUESTS = 400


def deadly(rng: np.random.Generator, notices: bool) -> Faults:
    """Return faults by which workers die and vanish, and messages are late or lost."""

    def moments(count: int, longest_ns: int) -> tuple[tuple[int, str, int], ...]:
        return tuple(
            (int(rng.integers(LENGTH_NS)), f"w{int(rng.integers(WORKERS))}", int(rng.integers(longest_ns)))
            for _ in range(count)
        )

    return Faults(
        delay_jitter_ns=int(rng.integers(20 * MILLISECOND)),
        client_delay_ns=int(rng.integers(MILLISECOND)),
        duration_jitter=0.1,
        slow_probability=0.02,
        engine_error_probability=0.02,
        input_loss_probability=0.05,
        output_loss_probability=0.05,
        crashes=moments(12, 200 * MILLISECOND),
        session_losses=moments(12, 30 * MILLISECOND),
        detection_ns=int(rng.integers(200 * MILLISECOND)),
        worker_loss_notices=notices,
    )


def play(seed: int, *, notices: bool = True, gateway_core: bool = True) -> tuple[Simulation, Stream]:
    """Play a seed to its end; return the controller's event stream too."""
    rng = np.random.default_rng(seed)
    models = [random_model(rng, f"m{number}", f"graph {number % 3}") for number in range(6)]
    pages = 2 * max(model.pages for model in models)
    stream: Stream = []
    simulation = Simulation(
        SchedulerConfig(policy=("mainspring", "clockwork")[seed % 2]),
        models,
        [(f"w{number}", "fast", pages) for number in range(WORKERS)],
        seed=seed,
        faults=deadly(rng, notices),
        record=lambda now_ns, each: stream.append((now_ns, each)),
        gateway_core=gateway_core,
        validate_every=20,
    )
    for request_id in range(REQUESTS):
        when_ns = int(rng.integers(LENGTH_NS))
        slo_ns = None if rng.random() < 0.1 else int(rng.uniform(20, 400) * MILLISECOND)
        name, priority = models[int(rng.integers(len(models)))].name, request_id % 3
        rows = int(rng.integers(2, 40)) if request_id % 5 == 1 else 1
        simulation.request(when_ns, request_id, name, rows, slo_ns, priority=priority)
        if rng.random() < 0.05:
            simulation.cancel(when_ns + int(rng.integers(50 * MILLISECOND)), request_id)
    simulation.run(LENGTH_NS + BEST_EFFORT_NS + SECOND)
    simulation.validate()
    return simulation, stream


def core_of(simulation: Simulation) -> GatewayCore:
    assert isinstance(simulation.gateway, CoreGateway)
    return simulation.gateway.core


@seeded(12)
def test_each_request_has_exactly_one_reply_by_its_deadline_and_the_grace(seed: int) -> None:
    simulation, stream = play(seed)
    assert len(simulation.outcomes) == REQUESTS
    wrong = [each for each in simulation.outcomes.values() if each.answers != 1]
    assert not wrong, f"seed {seed}: {wrong[:3]}"
    for each in simulation.outcomes.values():
        deadline_ns = each.request.deadline_ns
        last_ns = each.arrived_ns + BEST_EFFORT_NS if deadline_ns is None else deadline_ns + GRACE_NS
        assert each.answered_ns is not None
        assert each.answered_ns - simulation.faults.client_delay_ns <= last_ns, f"seed {seed}: {each}"
    core = core_of(simulation)
    assert core.in_flight == 0
    counts = core.counts
    pieces = {piece_id(whole, index) for whole in range(REQUESTS) for index in range(40)}
    known = {each.request_id for _, each in stream if isinstance(each, RequestArrived)} - pieces
    known |= {each.query_id for _, each in stream if isinstance(each, QueryArrived)}
    first = [each for _, each in stream if isinstance(each, RequestArrived) and each.request_id < REQUESTS]
    assert all(each.priority == each.request_id % 3 for each in first), "priorities go along"
    assert counts["submitted"] == counts["answered"] + counts["refused"] == REQUESTS
    assert len(known) == REQUESTS + counts["resubmitted"], "each id that was given reached the controller"
    assert sum(each.in_time for each in simulation.outcomes.values()) > REQUESTS // 8, "it should serve too"


@seeded(8)
def test_the_quick_stand_in_decides_as_the_core_does(seed: int) -> None:
    whole, expected = play(seed, notices=False)
    quick, stream = play(seed, notices=False, gateway_core=False)
    assert not isinstance(quick.gateway, CoreGateway)
    assert stream == expected
    assert quick.outcomes == whole.outcomes


def test_the_seeds_reach_what_they_are_for() -> None:
    reasons: set[Reason | None] = set()
    happened: dict[str, int] = dict.fromkeys(("resubmitted", "late_outputs", "late_rejections"), 0)
    for seed in range(12):
        simulation, _ = play(seed)
        reasons |= {each.reason for each in simulation.outcomes.values()}
        for name in happened:
            happened[name] += core_of(simulation).counts[name]
    assert {None, Reason.TIMED_OUT, Reason.CANCELLED, Reason.DEADLINE_UNREACHABLE} <= reasons, reasons
    assert all(happened.values()), f"what never happened tests nothing: {happened}"
