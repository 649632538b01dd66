"""Requests without a deadline: never refused for one, refused only where the queue is too long, and served
beside requests that fill the device."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer, Prepare, Reject
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import ModelAdded
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.traces.records import NO_DEADLINE, OUTPUTS
from tests.scheduler.hand import MS, Hand, spec

POLICIES = ("mainspring", "clockwork", "edf", "fifo", "nexus", "symphony")
SINGLE = msgspec.structs.replace(
    spec("m"), profiles={"gpu": Profile({1: 10 * MS, 2: 20 * MS, 4: 40 * MS}, 8 * MS)}
)
"""A row takes 10 ms in every batch."""


def infers(commands: list[Command]) -> list[Infer]:
    return [each for each in commands if isinstance(each, Infer)]


@pytest.mark.parametrize("status", [Status.TOO_LATE, Status.NOT_RESIDENT])
def test_however_often_it_can_not_begin_no_deadline_is_said_to_have_passed(status: Status) -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    commands, now_ms = hand.request(100, 1, "m", None), 100.0
    for _ in range(20):
        (infer,) = infers(commands)
        now_ms += 1_100
        commands = hand.end(now_ms, infer, status, "executor exec was not free")
        assert not [each for each in commands if isinstance(each, Reject)]
        while not infers(commands):
            wakeup_ns = hand.scheduler.next_wakeup_ns()
            assert wakeup_ns is not None
            now_ms = max(now_ms, wakeup_ns / MS)
            commands = [*hand.scheduler.schedule(wakeup_ns)]
            for each in commands:
                if not isinstance(each, Infer):
                    commands += hand.ok(now_ms, each)


def test_what_fails_on_its_worker_again_and_again_is_refused_for_that() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    commands, now_ms = hand.request(100, 1, "m", None), 100.0
    while infers(commands):
        now_ms += 10
        commands = hand.end(now_ms, infers(commands)[0], Status.INPUT_MISSING)
        hand.scheduler.validate()
    assert [each.reason for each in commands if isinstance(each, Reject)] == [Reason.WORKER_FAILED]


def test_beyond_the_horizon_it_is_refused_on_arrival_with_when_to_come_again() -> None:
    hand = Hand(SINGLE, policy="mainspring", best_effort_horizon_ms=200.0)  # type: ignore[arg-type]
    hand.warm("m")
    refused = []
    for number in range(60):
        refused += [each for each in hand.request(2_000, number, "m", None) if isinstance(each, Reject)]
    assert 15 <= 60 - len(refused) <= 25, "10 ms each, on one worker"
    assert {each.reason for each in refused} == {Reason.OVERLOADED}
    assert "best_effort_horizon_ms" in refused[0].detail
    assert refused[0].earliest_finish_ns is not None
    assert 2_000 * MS < refused[0].earliest_finish_ns <= 2_100 * MS
    assert not [each for each in hand.request(2_001, 99, "m", 60_000) if isinstance(each, Reject)]


def only_on(hand: Hand, worker: str, model: ModelSpec) -> None:
    """Serve a model that every other worker of the hand's fails to prepare."""
    for each in hand.feed(0, ModelAdded(model)):
        if isinstance(each, Prepare):
            hand.prepare(
                hand.end(0, each, Status.OK if each.worker == worker else Status.ENGINE_ERROR, "none")
            )


def refusals(hand: Hand, model: str, ids: range) -> int:
    """Return how many requests without a deadline are refused of some that come at once."""
    commands = [hand.request(2_000, number, model, None) for number in ids]
    return sum(isinstance(each, Reject) for some in commands for each in some)


def test_the_queue_of_a_model_that_few_workers_can_run_ends_when_these_are_through() -> None:
    hand = Hand(workers=4, policy="mainspring", best_effort_horizon_ms=200.0)  # type: ignore[arg-type]
    for name, worker in (("only", "w0"), ("other", "w1")):
        only_on(hand, worker, msgspec.structs.replace(SINGLE, name=name, weights_hash=name))
    refused = refusals(hand, "only", range(60))
    assert 35 <= refused <= 45, f"10 ms each on one of four workers; {refused} of 60 refused"
    refused = refusals(hand, "other", range(100, 115))
    assert not refused, "what waits for another worker takes nothing of this one's time"


def test_without_a_horizon_all_are_queued() -> None:
    hand = Hand(SINGLE, policy="mainspring", best_effort_horizon_ms=0.0)  # type: ignore[arg-type]
    hand.warm("m")
    for number in range(1_000):
        assert not [each for each in hand.request(2_000, number, "m", None) if isinstance(each, Reject)]


def served(policy: str, share: float) -> tuple[float, int, int]:
    """Return the share answered in time of what fills the device, and of what has no deadline how many were
    answered and how many came."""
    cluster = SimulationSpec(
        devices=(DeviceGroup(count=1),),
        models=(
            ModelGroup(name="tight", infer_ms={"1": 4.0, "2": 7.0, "4": 13.0}),
            ModelGroup(name="free", infer_ms={"1": 6.0, "2": 11.0}),
        ),
        workload=(
            WorkloadSpec(models="tight", rate=500.0, slo_ms=40.0),
            WorkloadSpec(models="free", rate=4.0, best_effort=True),
        ),
        scheduler=SchedulerConfig(policy=policy, best_effort_share=share),
        warm_up_s=0.5,
        duration_s=5.0,
        seed=1,
    )
    sent, replied = simulate(cluster, analyse=False).records.columns()
    answered, free = replied["outcome"] == OUTPUTS, sent["slo_ns"] == NO_DEADLINE
    in_time = answered & ~free & (replied["replied_ns"] - sent["intended_ns"] <= sent["slo_ns"])
    return float(in_time.sum() / (~free).sum()), int((answered & free).sum()), int(free.sum())


@pytest.mark.parametrize("policy", POLICIES)
def test_beside_requests_that_fill_the_device_they_get_their_share(policy: str) -> None:
    alone, none, _ = served(policy, 0.0)
    beside, some, came = served(policy, 0.05)
    assert some >= 0.8 * came, f"{some} of {came}; without a share {none}"
    assert beside >= alone - 0.05 - 0.02
