"""Which models a worker prepares first."""

from __future__ import annotations

from mainspring.messages.actions import Prepare
from mainspring.messages.events import WorkerJoined, WorkerLeft
from tests.scheduler.hand import Hand, spec

NAMES = ("a", "b", "c", "d")


def asked_for(hand: Hand, *names: str) -> None:
    """Ask for models, once for each name, which are served."""
    for number, name in enumerate(names):
        at_ms = 10.0 + 100 * number
        for command in hand.request(at_ms, number + 1, name, 90):
            if hasattr(command, "request_ids"):
                hand.ok(at_ms + 20, command)


def prepared_in_order(hand: Hand, worker: str) -> list[str]:
    """Have a worker join that has nothing, and return its models in the order in which it prepares them."""
    commands = hand.feed(2_000, WorkerJoined(worker, "gpu", 8, {}))
    found: list[str] = []
    while prepares := [each for each in commands if isinstance(each, Prepare) and each.worker == worker]:
        found += [each.model.name for each in prepares]
        commands = [after for each in prepares for after in hand.ok(2_000 + len(found), each)]
    return found


def test_a_worker_that_returns_begins_with_what_is_asked_for_most() -> None:
    hand = Hand(*map(spec, NAMES), workers=2)
    asked_for(hand, "d", "b", "d", "c", "d", "b")
    hand.feed(1_000, WorkerLeft("w0", "killed"))
    assert prepared_in_order(hand, "w0") == ["d", "b", "c", "a"]


def test_without_any_request_it_prepares_models_in_the_order_in_which_they_came() -> None:
    hand = Hand(*map(spec, NAMES), workers=1)
    assert prepared_in_order(hand, "w1") == [*NAMES]
