"""LOADs that no waiting request needs at once, and who may do how many of them."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Command, Load
from mainspring.messages.events import OperatorAsked, RequestCancelled, WorkerLeft
from mainspring.messages.operating import DrainWorker, ResumeWorker
from mainspring.scheduler.load_queue import LOOKED_AT
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


def test_missed_models_keep_their_places_while_no_load_executor_is_idle() -> None:
    names = [f"m{number}" for number in range(LOOKED_AT + 2)]
    hand = Hand(*[spec(name) for name in names], workers=1, lookahead_ms=10_000.0)
    (load,) = hand.request(0, 1, "m0", 1_000)
    assert isinstance(load, Load)
    for number, name in enumerate(names[1:], start=2):
        assert loads(hand.request(0, number, name, None)) == []
    (found,) = loads(hand.ok(9, load))
    assert found == ("m1", "w0"), "the first that was missed is the first to be loaded"


def test_models_that_need_no_load_any_more_keep_no_other_from_an_idle_executor() -> None:
    names = [f"m{number}" for number in range(2 * LOOKED_AT)]
    hand = Hand(*[spec(name) for name in names], workers=1, lookahead_ms=10_000.0, idle_loads=False)
    (load,) = hand.request(0, 1, "m0", 1_000)
    for number, name in enumerate(names[1:], start=2):
        hand.request(0, number, name, None)
    for number in range(2, len(names)):
        hand.feed(1, RequestCancelled(number))
    ((model, _),) = loads(hand.ok(9, load))
    assert model == names[-1], "the requests for all others were withdrawn"
