"""Whole clusters in virtual time under the policies after published systems, by seed."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Command
from mainspring.messages.codes import Reason
from mainspring.messages.events import Event
from mainspring.simulator.scenario import SECOND, random_scenario, run_to_end
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded

POLICIES = ("clockwork-release", "nexus", "symphony")
LENGTH_NS = SECOND


@pytest.mark.parametrize("policy", POLICIES)
@seeded(10)
def test_every_request_is_answered_and_nothing_is_late_without_faults(policy: str, seed: int) -> None:
    simulation = random_scenario(seed, policy=policy, length_ns=LENGTH_NS, validate_every=7)
    run_to_end(simulation, LENGTH_NS)
    simulation.validate()
    served = 0
    for outcome in simulation.outcomes.values():
        assert outcome.answers == 1, f"seed {seed}: {outcome} should have one answer"
        served += outcome.reason is None
        if simulation.faults == Faults():
            assert outcome.reason is not Reason.TIMED_OUT, f"seed {seed}: {outcome} was forgotten"
            assert outcome.in_time or outcome.reason, f"seed {seed}: {outcome} is late with nothing wrong"
    assert served
    assert simulation.scheduler.status().requests_queued == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_stream(policy: str) -> None:
    streams: list[list[tuple[int, Event | Command]]] = [[], []]
    for stream in streams:
        record = stream.append
        simulation = random_scenario(
            3,
            policy=policy,
            length_ns=LENGTH_NS,
            validate_every=1000,
            record=lambda now_ns, message, record=record: record((now_ns, message)),  # type: ignore[misc]
        )
        run_to_end(simulation, LENGTH_NS)
    assert streams[0] == streams[1]
