"""Models on many workers: one entry for all of them, and one worker asked after the other."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer
from mainspring.messages.events import (
    ModelRemoved,
    OperatorAsked,
    RequestArrived,
    Resident,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.operating import DrainWorker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.policies.registry import policy_names
from mainspring.scheduler.state import WIDE_FROM, is_replicated_widely
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import Crash, DeviceGroup, FaultsSpec, ModelGroup, SimulationSpec, WorkloadSpec
from tests.scheduler.hand import MS, Hand, spec

WORKERS = WIDE_FROM + 4
MODELS = tuple(spec(name) for name in ("m", "n"))


def infers(commands: list[Command]) -> list[Infer]:
    return [command for command in commands if isinstance(command, Infer)]


def join(hand: Hand, name: str, now_ms: float = 0) -> None:
    """Have a worker join that holds all models."""
    prepared = {model.name: model.artifact for model in MODELS}
    resident = tuple(Resident(model.name, model.artifact, (page,)) for page, model in enumerate(MODELS))
    hand.feed(now_ms, WorkerJoined(name, "gpu", 8, prepared, resident))


def everywhere(policy: str = "mainspring") -> Hand:
    hand = Hand(*MODELS, workers=0, policy=policy, lookahead_ms=1.0)  # type: ignore[arg-type]
    for index in range(WORKERS):
        join(hand, f"w{index}")
    return hand


@pytest.mark.parametrize("policy", policy_names())
def test_each_request_finds_an_idle_worker_of_its_own(policy: str) -> None:
    hand = everywhere(policy)
    chosen = []
    for id_ in range(WORKERS):
        for name in ("m", "n"):
            chosen += infers(hand.request(1, 2 * id_ + (name == "n"), name, 500))
    if policy in ("mainspring", "clockwork", "edf", "fifo"):
        assert [infer.worker for infer in chosen] == [f"w{index}" for index in range(WORKERS)]
    for infer in chosen:
        hand.ok(20, infer)


def test_all_requests_of_an_instant_go_out_at_once() -> None:
    hand = everywhere()
    for id_ in range(3 * WORKERS):
        hand.scheduler.handle(MS, RequestArrived(id_, "m", 4, 500 * MS))
    sent = infers(hand.scheduler.schedule(MS))
    hand.scheduler.validate()
    assert len({infer.worker for infer in sent}) == len(sent) == WORKERS, "each has one, all have some"


def test_a_worker_that_ends_takes_what_waits() -> None:
    hand = everywhere()
    sent = [infer for id_ in range(WORKERS) for infer in infers(hand.request(1, id_, "m", 500))]
    assert infers(hand.request(2, 100, "n", 500)) == []
    (after,) = infers(hand.ok(5, sent[3]))
    assert (after.worker, after.request_ids) == ("w3", (100,))


def test_one_entry_stands_for_all_workers_until_few_are_left() -> None:
    hand = everywhere()
    state = hand.scheduler._state
    model = state.cluster.models["m"]
    assert is_replicated_widely(state.cluster, model)
    assert model_note(model).copies is not None
    for index in range(4):
        hand.feed(1, WorkerLeft(f"w{index}", "crashed"))
    assert not is_replicated_widely(state.cluster, model)
    assert model_note(model).copies is None
    assert [infer.worker for infer in infers(hand.request(2, 1, "m", 100))] == ["w4"]
    join(hand, "again", 3)
    assert model_note(model).copies is not None
    assert state.cluster.workers["again"].bit == 1, "the lowest seat was free"
    assert [infer.worker for infer in infers(hand.request(4, 2, "n", 100))] == ["again"]


def test_workers_that_take_no_work_are_not_asked() -> None:
    hand = everywhere()
    hand.feed(1, OperatorAsked("test", DrainWorker("w0")))
    hand.feed(1, WorkerLeft("w1", "crashed"))
    assert [infer.worker for infer in infers(hand.request(2, 1, "m", 100))] == ["w2"]
    hand.feed(3, ModelRemoved("m"))
    assert [infer.worker for infer in infers(hand.request(4, 2, "n", 100))] == ["w3"]


SPEC = SimulationSpec(
    devices=(DeviceGroup(count=10, kind="old", speed=0.7, pages=60), DeviceGroup(count=12, pages=120)),
    models=(
        ModelGroup(name="quick", infer_ms={"1": 2.6, "4": 6.0, "16": 17.3}, copies=8),
        ModelGroup(name="slow", infer_ms={"1": 9.0, "4": 20.0}, copies=6, weights_mb=300.0),
    ),
    workload=(
        WorkloadSpec(rate=1_000.0, zipf_exponent=1.1, rows=2),
        WorkloadSpec(rate=60.0, best_effort=True),
    ),
    faults=FaultsSpec(
        duration_jitter=0.05,
        slow_probability=0.003,
        engine_error_probability=0.01,
        crashes=(Crash(worker="worker-2", at_s=0.5), Crash(worker="worker-15", at_s=0.8, down_s=0.3)),
    ),
    warm_up_s=0.0,
    duration_s=1.6,
)


@pytest.mark.parametrize("rate", [1_500.0, 9_000.0])
@pytest.mark.parametrize("policy", policy_names())
def test_the_state_holds_together_whatever_happens_to_many_workers(policy: str, rate: float) -> None:
    played = msgspec.structs.replace(
        SPEC,
        workload=(WorkloadSpec(rate=rate, zipf_exponent=1.1, rows=2), SPEC.workload[1]),
        duration_s=SPEC.duration_s if rate < 5_000 else 0.9,
        scheduler=SchedulerConfig(policy=policy),
    )
    summary = simulate(played, validate_every=61).summary
    assert summary.lost == 0
    assert summary.offered > 1_000
