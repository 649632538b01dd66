"""Whole clusters in virtual time, by seed, under every policy; a failure names what repeats it."""

import pytest

from mainspring.messages.codes import Reason
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.policies.registry import policy_names
from mainspring.simulator.scenario import check_scenario, reproduction
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded
from tests.simulator.played import decided_again, played


@seeded(24)
def test_every_request_is_answered_and_nothing_is_late_without_faults(seed: int) -> None:
    simulation, _ = played(seed, validate_every=7)
    for outcome in simulation.outcomes.values():
        assert outcome.answers == 1, f"seed {seed}: {outcome} should have one answer"
        if simulation.faults == Faults():
            assert outcome.in_time or outcome.reason, f"seed {seed}: {outcome} is late with nothing wrong"
            if outcome.request.deadline_ns is not None:
                assert outcome.reason is not Reason.TIMED_OUT, f"seed {seed}: {outcome} was forgotten"
    assert simulation.scheduler.status().requests_queued == 0
    assert all(worker.outstanding == 0 for worker in simulation.scheduler.status().workers)


@seeded(6, first=100)
@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_keeps_every_invariant_and_answers_each_request_once(policy: str, seed: int) -> None:
    story = check_scenario(seed, policy)
    assert not story.wrong, f"{story.text}\nrepeat it with: {reproduction(seed, policy)}"


def test_a_scenario_that_goes_wrong_is_told_with_its_number() -> None:
    spoiler = "tests.simulator.broken_policy:Spoiler"
    story = check_scenario(3, spoiler)
    assert story.wrong
    assert f"of scenario 3, {spoiler}: " in story.text
    assert reproduction(3, "edf") == "mainspring simulate --scenario 3 --policy edf"


def test_the_scenarios_reach_what_they_are_for() -> None:
    reasons = set()
    kinds = set()
    for seed in range(24):
        simulation, stream = played(seed)
        reasons |= {outcome.reason for outcome in simulation.outcomes.values()}
        kinds |= {type(message).__name__ for _, message in stream}
    assert {Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED, Reason.MODEL_REMOVED, None} <= reasons
    assert {"Prepare", "Release", "Load", "Unload", "Infer", "Reject", "WorkerLeft"} <= kinds


@pytest.mark.parametrize("seed", [3, 8])
def test_the_same_seed_gives_the_same_stream(seed: int) -> None:
    assert played(seed)[1] == played(seed)[1]


@seeded(9, also=[893])  # A request is queued again before the alarm of its first time.
def test_a_recorded_stream_replays_to_the_same_commands(seed: int) -> None:
    """The first scheduler is asked for its next wake-up after each turn, the second one never."""
    names = policy_names()
    simulation, stream = played(seed, names[seed % len(names)], refuse_wrongly=0.15 if seed % 2 else 0.0)
    assert decided_again(simulation, stream) == stream


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"choose one of .*clockwork"):
        Scheduler(SchedulerConfig(policy="clockwrok"))
