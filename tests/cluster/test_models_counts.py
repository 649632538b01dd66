"""What became of each model's requests, as the scheduler and a reader of its stream count it."""

from __future__ import annotations

import pytest

from mainspring.cluster.apply import apply
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command, Infer
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    RequestCancelled,
    WorkerLeft,
)
from tests.scheduler.hand import MS, Hand, spec


def counts(cluster: Cluster, name: str = "a") -> tuple[int, int, int, int]:
    found = cluster.models[name].counts
    return found.arrived, found.finished, found.late, found.rejected


@pytest.fixture
def hand() -> Hand:
    made = Hand(spec("a"), spec("b"))
    made.warm("a")
    return made


def counted(hand: Hand, name: str = "a") -> tuple[int, int, int, int]:
    """Return the counts since the model was warmed, as the status says them."""
    (status,) = [model for model in hand.scheduler.status().models if model.name == name]
    assert (status.arrived, status.finished, status.late, status.rejected) == counts(
        hand.scheduler._state.cluster, name
    )
    return status.arrived - 1, status.finished - 1, status.late, status.rejected


def sent(commands: list[Command]) -> Infer:
    (infer,) = [command for command in commands if isinstance(command, Infer)]
    return infer


def test_a_request_is_counted_once_as_what_became_of_it(hand: Hand) -> None:
    in_time = sent(hand.request(100, 1, "a", 50))
    assert counted(hand) == (1, 0, 0, 0)
    hand.ok(104, in_time)
    late = sent(hand.request(200, 2, "a", 50))
    hand.ok(251, late)
    hand.ok(252, late)
    assert counted(hand) == (2, 1, 1, 0)
    hand.request(300, 3, "a", 0.5)
    hand.ok(310, sent(hand.request(301, 4, "a", None)))
    assert counted(hand) == (4, 2, 1, 1)


def test_too_many_rows_count_as_rejected_and_a_known_id_counts_once(hand: Hand) -> None:
    hand.request(100, 1, "a", 50, rows=100)
    infer = sent(hand.request(110, 2, "a", 50))
    hand.request(111, 2, "a", 50)
    hand.ok(115, infer)
    assert counted(hand) == (2, 1, 0, 1)


def test_what_was_given_up_by_its_client_is_neither_finished_nor_rejected(hand: Hand) -> None:
    infer = sent(hand.request(100, 1, "a", 50))
    hand.feed(101, RequestCancelled(1))
    hand.ok(104, infer)
    infer = sent(hand.request(200, 2, "a", 50))
    hand.feed(201, GatewayLeft(0))
    hand.ok(204, infer)
    assert counted(hand) == (2, 0, 0, 0)


def test_what_a_lost_worker_had_is_rejected_once(hand: Hand) -> None:
    infer = sent(hand.request(100, 1, "a", 50))
    hand.feed(101, WorkerLeft("w0", "killed"))
    hand.ok(104, infer)
    assert counted(hand) == (1, 0, 0, 1)


def test_a_model_that_is_not_served_has_no_counts(hand: Hand) -> None:
    hand.feed(100, RequestArrived(1, "unknown", 1, None))
    hand.feed(101, ModelRemoved("a"))
    hand.feed(102, ModelAdded(spec("a")))
    assert counts(hand.scheduler._state.cluster) == (0, 0, 0, 0)


def test_a_model_that_replaces_another_counts_on(hand: Hand) -> None:
    infer = sent(hand.request(100, 1, "a", 50))
    hand.feed(101, ModelAdded(spec("a", version="2")))
    hand.ok(104, infer)
    assert counted(hand) == (1, 1, 0, 0)


def test_what_is_rejected_as_its_model_is_replaced_is_counted_by_readers_too() -> None:
    hand = Hand(spec("a"), workers=0)
    cluster = Cluster(response_margin_ns=MS)
    for at_ms, event in (
        (0, ModelAdded(spec("a"))),
        (1, RequestArrived(1, "a", 1, None)),
        (2, RequestArrived(2, "a", 1, None)),
        (3, ModelAdded(spec("a", version="2"))),
        (4, RequestArrived(3, "a", 9, None)),
    ):
        for entry in (event, *hand.feed(at_ms, event)):
            apply(cluster, at_ms * MS, entry)
    assert counts(cluster) == counts(hand.scheduler._state.cluster)
    assert counts(cluster)[0] == counts(cluster)[3] == 3


def test_an_infer_that_failed_counts_for_nothing(hand: Hand) -> None:
    infer = sent(hand.request(100, 1, "a", 500))
    again = sent(hand.end(104, infer, Status.TOO_LATE))
    assert counted(hand) == (1, 0, 0, 0)
    hand.ok(110, again)
    assert counted(hand) == (1, 1, 0, 0)


def test_what_departed_is_counted(hand: Hand) -> None:
    assert hand.scheduler.departed == 0
    hand.feed(100, WorkerLeft("w0", "killed"))
    hand.feed(101, ModelRemoved("b"))
    hand.feed(102, ModelRemoved("b"))
    hand.feed(103, ModelAdded(spec("a", version="2")))
    assert hand.scheduler.departed == 3
