"""Workers of a model's own: who gets them, who keeps them, and what runs there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer
from mainspring.messages.events import Event, OperatorAsked
from mainspring.messages.operating import AssignModel, DrainWorker, OperatorCommand, ResumeWorker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.registry import policy_names
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    Crash,
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    SimulationSpec,
    SpecError,
    WorkloadSpec,
)
from tests.scheduler.hand import Hand, spec


def owners(hand: Hand) -> dict[str, str]:
    return {name: worker.owner for name, worker in hand.scheduler.cluster.workers.items()}


def asked(hand: Hand, at_ms: float, *commands: OperatorCommand) -> None:
    for command in commands:
        assert hand.scheduler.refusal(command) is None
        hand.feed(at_ms, OperatorAsked("ann", command))


def test_a_model_keeps_the_workers_that_it_has_and_gets_more_as_they_are_free() -> None:
    hand = Hand(spec("a"), spec("b"), workers=4)
    asked(hand, 1, AssignModel("a", 1), AssignModel("b", 5))
    assert list(owners(hand).values()) == ["a", "b", "b", "b"]
    asked(hand, 2, AssignModel("b", 1))
    asked(hand, 3, AssignModel("a", 2))
    assert list(owners(hand).values()) == ["a", "b", "a", ""]
    asked(hand, 4, AssignModel("a", 0))
    assert list(owners(hand).values()) == ["", "b", "", ""]


def test_a_drained_worker_keeps_its_owner_and_another_takes_its_place() -> None:
    hand = Hand(spec("a"), workers=3)
    asked(hand, 1, AssignModel("a", 1))
    first = next(iter(owners(hand)))
    asked(hand, 2, DrainWorker(first))
    assert list(owners(hand).values()) == ["a", "a", ""]
    asked(hand, 3, ResumeWorker(first))
    assert list(owners(hand).values()) == ["a", "", ""]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (AssignModel("x", 1), "there is no model 'x'"),
        (AssignModel("a", -1), "give 0 to 4,096"),
        (AssignModel("a", 1, 99), "the largest of 'a' has"),
        (AssignModel("a", 1, kind="tpu"), "there is no worker of kind 'tpu'; kinds are gpu"),
        (AssignModel("a", 0), "'a' has no workers of its own"),
    ],
)
def test_a_wish_that_can_not_be_says_what_could(command: AssignModel, says: str) -> None:
    assert says in (Hand(spec("a"), workers=1).scheduler.refusal(command) or "")


def two_models(**changes: Any) -> SimulationSpec:
    """Return two models on three workers, of which the second owns the last two."""
    usual = SimulationSpec(
        devices=(
            DeviceGroup(kind="gpu"),
            DeviceGroup(kind="gpu", count=2, serves="b", max_batch=2),
        ),
        models=tuple(ModelGroup(name=name, infer_ms={"1": 4, "2": 6, "8": 12}) for name in "ab"),
        workload=(WorkloadSpec(models="a", rate=100), WorkloadSpec(models="b", rate=400, slo_ms=200)),
        warm_up_s=0,
        duration_s=2,
    )
    return msgspec.structs.replace(usual, **changes)


@pytest.mark.parametrize("policy", policy_names())
def test_each_policy_runs_a_model_on_its_own_workers_alone_in_batches_of_its_size(policy: str) -> None:
    infers: list[Infer] = []

    def note(_now_ns: int, entry: Event | Command) -> None:
        if isinstance(entry, Infer):
            infers.append(entry)

    run = simulate(two_models(scheduler=SchedulerConfig(policy=policy)), validate_every=50, record=note)
    assert run.summary.lost == 0
    ran = {(each.worker, each.model) for each in infers}
    assert ran <= {("worker-0", "a"), ("worker-1", "b"), ("worker-2", "b")}
    assert {model for _, model in ran} == {"a", "b"}
    assert max(sum(each.rows) for each in infers if each.model == "b") == 2


def test_a_worker_that_dies_is_replaced_by_one_that_nobody_owns() -> None:
    faults = FaultsSpec(crashes=(Crash(worker="worker-1", at_s=0.5, down_s=0.7),))
    run = simulate(two_models(faults=faults), validate_every=20)
    assert run.summary.lost == 0


def test_a_spec_names_what_can_not_be_served() -> None:
    group = DeviceGroup(kind="gpu", serves="c")
    with pytest.raises(SpecError, match="there is no such model: a, b"):
        simulate(two_models(devices=(group,)))
    with pytest.raises(SpecError, match="the largest batch of a has 8 rows"):
        simulate(two_models(devices=(msgspec.structs.replace(group, serves="a", max_batch=9),)))
    kinds = tuple(DeviceGroup(kind=kind, serves="a") for kind in ("gpu", "cpu"))
    with pytest.raises(SpecError, match="two kinds, gpu and cpu"):
        simulate(two_models(devices=kinds))
