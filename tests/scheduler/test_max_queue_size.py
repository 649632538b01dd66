"""A bound for one model's queue: one request more is refused at once, and other models' are not touched."""

from __future__ import annotations

import pytest

from mainspring.messages.codes import Reason
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import SetMaxQueue
from tests.scheduler.hand import Hand, spec


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
