"""A snapshot is told in small parts, each of which says how things are when it is taken."""

from __future__ import annotations

import msgspec

from mainspring.cluster.residency import at
from mainspring.cluster.snapshot import AT_ONCE, snapshot
from mainspring.messages.actions import Infer, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.estimates import InferEstimate
from mainspring.messages.events import ModelAdded, ModelRemoved, RequestCancelled, WorkerLeft
from mainspring.messages.snapshot import (
    ModelServed,
    ModelState,
    OutstandingState,
    PlacementStates,
    RequestState,
    Told,
    WorkerState,
)
from tests.scheduler.hand import Hand, spec


def told(hand: Hand) -> list[Told]:
    return [entry for part in snapshot(hand.scheduler._state.cluster) for entry in part]


def test_many_models_and_requests_are_told_in_parts() -> None:
    hand = Hand(*(spec(f"m{index}") for index in range(2 * AT_ONCE + 1)), workers=0)
    parts = list(snapshot(hand.scheduler._state.cluster))
    assert max(len(part) for part in parts) <= AT_ONCE
    models = [part for part in parts if part and isinstance(part[0], ModelState)]
    assert [len(part) for part in models] == [AT_ONCE, AT_ONCE, 1]


def test_placements_with_more_to_say_than_their_state_are_told_in_parts() -> None:
    names = [f"m{index}" for index in range(AT_ONCE + 1)]
    hand = Hand(*map(spec, names), pages=200)
    cluster = hand.scheduler._state.cluster
    for worker in cluster.workers.values():
        for model in cluster.models.values():
            at(cluster, model, worker).detail = "no such file"
    parts = [each for each in told(hand) if isinstance(each, PlacementStates)]
    assert [len(each.placements) for each in parts] == [AT_ONCE, 1]
    assert [each.model for part in parts for each in part.placements] == names


def test_what_is_merely_prepared_is_a_name() -> None:
    hand = Hand(spec("a"), spec("b"))
    (prepare,) = [each for each in hand.feed(1, ModelAdded(spec("c"))) if isinstance(each, Prepare)]
    hand.feed(2, Result(prepare.action_id, "w0", Status.ENGINE_ERROR, 1, 2, detail="no such file"))
    entries = told(hand)
    (worker,) = [each for each in entries if isinstance(each, WorkerState)]
    assert worker.states == {"prepared": ("a", "b"), "failed": ("c",)}
    (states,) = [each for each in entries if isinstance(each, PlacementStates)]
    assert [(each.model, each.state, each.detail) for each in states.placements] == [
        ("c", "failed", "no such file")
    ]


def test_a_cancelled_request_that_runs_comes_with_its_infer_alone() -> None:
    hand = Hand(spec("a"))
    hand.warm("a")
    (infer,) = [each for each in hand.request(100, 1, "a", 1000) if isinstance(each, Infer)]
    hand.feed(101, RequestCancelled(1))
    entries = told(hand)
    assert not [each for each in entries if isinstance(each, RequestState)]
    (first, second) = [each for each in entries if isinstance(each, OutstandingState)]
    assert first == second
    (slot,) = first.exec
    assert slot.action == infer
    assert [(each.event.request_id, each.place) for each in slot.requests] == [(1, "gone")]


def test_estimates_are_told_once_for_all_models_that_share_them() -> None:
    hand = Hand(*(spec(name) for name in "abc"), workers=2)
    hand.feed(1, ModelAdded(msgspec.structs.replace(spec("d"), executable=spec("a").executable)))
    estimates = [each for each in told(hand) if isinstance(each, InferEstimate)]
    assert [each.executable for each in estimates] == [f"graph of {name}" for name in "abc"]


def test_what_leaves_while_the_snapshot_is_made_is_passed_over() -> None:
    hand = Hand(spec("a"), spec("b"), workers=2)
    parts = snapshot(hand.scheduler._state.cluster)
    entries = [*next(parts), *next(parts)]
    hand.feed(1, WorkerLeft("w1", "killed"))
    hand.feed(1, ModelRemoved("b"))
    entries += [entry for part in parts for entry in part]
    assert [each.model.name for each in entries if isinstance(each, ModelServed)] == ["a"]
    assert [each.worker for each in entries if isinstance(each, WorkerState)] == ["w0"]
