"""LOADs that no waiting request needs at once, and who may do how many of them."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Load
from mainspring.messages.commands import Command
from mainspring.messages.events import OperatorAsked, WorkerLeft
from mainspring.messages.operating import DrainWorker, ResumeWorker
from mainspring.scheduler.state import IDLE_LOADERS
from tests.scheduler.hand import Hand, spec

COLD = [spec(f"m{number}") for number in range(4)]


def loads(commands: list[Command]) -> list[tuple[str, str]]:
    return [(command.model, command.worker) for command in commands if isinstance(command, Load)]


@pytest.mark.parametrize("policy", ["clockwork", "mainspring"])
def test_loads_for_deadlines_on_one_worker_keep_no_idle_one_from_loading(policy: str) -> None:
    hand = Hand(*COLD, workers=6, policy=policy)  # type: ignore[arg-type]
    ((_, busy),) = loads(hand.request(0, 1, "m0", 100))
    ((model, worker),) = loads(hand.request(1, 2, "m1", None))
    assert (model, worker != busy) == ("m1", True), "a request without a deadline, and five idle executors"


def test_few_workers_load_idly_at_once() -> None:
    hand = Hand(*COLD, workers=6)
    (load,) = hand.request(0, 1, "m1", None)
    assert loads(hand.request(1, 2, "m2", None)) == []
    assert [model for model, _ in loads(hand.ok(9, load))] == ["m2"]


@pytest.mark.parametrize(("drained", "at_once"), [(0, 2), (1, 1)])
def test_drained_workers_do_not_count_among_those_that_load_idly(drained: int, at_once: int) -> None:
    hand = Hand(*COLD, workers=2 * IDLE_LOADERS)
    for number in range(drained):
        hand.feed(0, OperatorAsked("ann", DrainWorker(f"w{number}")))
    found = [each for number in range(4) for each in loads(hand.request(1, number, f"m{number}", None))]
    assert len(found) == at_once
    for number in range(drained):
        found += loads(hand.feed(2, OperatorAsked("ann", ResumeWorker(f"w{number}"))))
    assert len(found) == 2


def test_a_worker_that_leaves_gives_its_idle_load_to_another() -> None:
    hand = Hand(*COLD, workers=2)
    (load,) = hand.request(0, 1, "m1", None)
    assert isinstance(load, Load)
    ((model, worker),) = loads(hand.feed(1, WorkerLeft(load.worker, "gone")))
    assert (model, worker != load.worker) == ("m1", True)
