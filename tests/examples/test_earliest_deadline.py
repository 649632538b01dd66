from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.registry import make_policy, policy_class
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.scenario import SECOND, random_scenario, run_to_end
from tests.fuzz import seeded

POLICY = "examples.earliest_deadline:EarliestDeadline"


@seeded(6)
def test_it_serves_random_clusters_and_keeps_every_invariant(seed: int) -> None:
    simulation = random_scenario(seed, policy=POLICY, length_ns=SECOND, validate_every=7)
    run_to_end(simulation, SECOND)
    simulation.validate()
    outcomes = simulation.outcomes.values()
    assert outcomes
    assert simulation.scheduler.status().policy == POLICY


def test_it_serves_most_of_what_clockwork_serves() -> None:
    served = {}
    for policy in (POLICY, "clockwork"):
        served[policy] = 0
        for seed in range(6):
            simulation = random_scenario(seed, policy=policy, length_ns=SECOND, validate_every=1000)
            run_to_end(simulation, SECOND)
            served[policy] += sum(outcome.in_time for outcome in simulation.outcomes.values())
    assert served[POLICY] > 0.5 * served["clockwork"] > 0


def test_it_stays_below_60_lines() -> None:
    text = (Path(__file__).resolve().parents[2] / "examples/earliest_deadline.py").read_text()
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("clockwrk", "choose one of .*clockwork"),
        ("no_such_module:Policy", "can't be imported"),
        ("examples.earliest_deadline:Nothing", "can't be imported"),
        ("examples.earliest_deadline:Batch", "not a subclass"),
        ("mainspring.scheduler.policies.base:Policy", "lacks next_batch, next_load"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        policy_class(name)
    with pytest.raises(ValueError, match=says):
        make_policy(name, SchedulerState(SchedulerConfig()))
