"""A bound for one model's queue: one request more is refused at once, and other models' are not touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.messages.actions import Command, Infer, Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import OperatorAsked, WorkerJoined
from mainspring.messages.model import Profile
from mainspring.messages.operating import SetMaxQueue
from tests.scheduler.hand import MS, Hand, spec

SLOW = Profile({1: 100 * MS}, 8 * MS)


def rejects(commands: list[Command]) -> list[Reject]:
    return [each for each in commands if isinstance(each, Reject)]


@pytest.mark.parametrize("slo_ms", [5_000, None])
@pytest.mark.parametrize("by_operator", [True, False])
def test_one_more_than_may_wait_is_refused_with_the_bound(slo_ms: int | None, by_operator: bool) -> None:
    told = {} if by_operator else {"max_queue_sizes": {"m": 3}}
    hand = Hand(spec("m"), spec("other"), **told)  # type: ignore[arg-type]
    if by_operator:
        hand.feed(0, OperatorAsked("me", SetMaxQueue("m", 3)))
    hand.warm("m")
    waiting, refused = 0, []
    for number in range(20):
        before = hand.scheduler.status().models[0].queued
        found = rejects(hand.request(100, number, "m", slo_ms))
        assert bool(found) == (before >= 3)
        refused += found
        waiting = max(waiting, hand.scheduler.status().models[0].queued)
    assert waiting == 3
    assert {each.reason for each in refused} == {Reason.OVERLOADED}
    assert refused[0].detail == "3 requests wait for 'm', and its bound (max_queue_size) is 3"
    for number in range(20, 40):
        assert not rejects(hand.request(100, number, "other", None)), "another model has no bound"


def test_a_bound_that_is_taken_back_bounds_no_more() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    hand.feed(50, OperatorAsked("me", SetMaxQueue("m", 1)))
    hand.feed(50, OperatorAsked("me", SetMaxQueue("m")))
    for number in range(20):
        assert not rejects(hand.request(100, number, "m", 5_000))


@pytest.mark.parametrize("slo_ms", [60_000, None])
@pytest.mark.parametrize("bound", ["max_queue_sizes", "max_queued_requests_per_model", "max_queued_requests"])
def test_what_is_refused_by_a_bound_is_told_when_to_come_again(bound: str, slo_ms: int | None) -> None:
    config: dict[str, Any] = {bound: {"m": 8} if bound == "max_queue_sizes" else 8}
    slow = msgspec.structs.replace(spec("m", single_ms=100), batch_sizes=(1,), profiles={"gpu": SLOW})
    hand = Hand(slow, policy="mainspring", best_effort_horizon_ms=0.0, **config)  # type: ignore[arg-type]
    (load,) = hand.request(0, 1_000, "m", None)
    (infer,) = (each for each in hand.ok(9, load) if isinstance(each, Infer))
    hand.ok(110, infer)
    refused, running = [], None
    for number in range(12):
        commands = hand.request(2_000, number, "m", slo_ms)
        refused += rejects(commands)
        running = running or next((each for each in commands if isinstance(each, Infer)), None)
    assert running is not None
    assert {each.reason for each in refused} == {Reason.OVERLOADED}
    (again_ns,) = {each.earliest_finish_ns for each in refused}
    assert again_ns is not None
    assert 2_050 <= again_ns / MS <= 2_150, "one of those that wait begins every 100 ms"
    hand.ok(2_100, running)
    assert not rejects(hand.request(again_ns / MS, 99, "m", slo_ms)), "there is room then"


def test_without_a_worker_for_the_model_nobody_knows_when_to_come_again() -> None:
    hand = Hand(spec("m"), workers=0, max_queue_sizes={"m": 1})  # type: ignore[arg-type]
    hand.feed(0, WorkerJoined("w0", "gpu", 8))
    found = [each for number in range(3) for each in rejects(hand.request(0, number, "m", None))]
    assert [(each.reason, each.earliest_finish_ns) for each in found] == [(Reason.OVERLOADED, None)] * 2
