"""A failed check of the state tells the last entries about what it names."""

from __future__ import annotations

import pytest

from mainspring.cluster.validate import HISTORY, TOLD, validate
from mainspring.messages.events import RequestArrived
from tests.scheduler.hand import Hand, spec


def two_waiting() -> Hand:
    """Two models whose LOADs are under way, with a request for each."""
    hand = Hand(spec("m"), spec("other"))
    hand.request(1, 7, "m", 500)
    hand.request(2, 8, "other", 500)
    return hand


def fault(hand: Hand) -> list[str]:
    """Return the lines of what is found once request 7 is in no place."""
    cluster = hand.scheduler.cluster
    cluster.models["m"].queue.remove(cluster.requests[7])
    with pytest.raises(AssertionError) as raised:
        validate(cluster)
    return str(raised.value).splitlines()


def test_it_tells_what_became_of_its_subject_and_of_no_other() -> None:
    first, *story = fault(two_waiting())
    assert first.startswith("request 7 (m, 1 rows"), first
    assert [line.split("(")[0].strip() for line in story] == [
        "0.000 ms: ModelAdded",
        "0.000 ms: Prepare",
        "1.000 ms: RequestArrived",
        "1.000 ms: Load",
    ]
    assert not [line for line in story if "other" in line]


def test_the_story_is_bounded() -> None:
    hand = two_waiting()
    for number in range(HISTORY):
        hand.scheduler.handle(3_000_000 + number, _again())
    history = hand.scheduler.cluster.history
    assert history is not None
    assert len(history) == HISTORY
    assert len(fault(hand)) == 1 + TOLD


def test_where_requests_are_served_nothing_is_kept() -> None:
    hand = two_waiting()
    hand.scheduler.cluster.history = None
    assert len(fault(hand)) == 1


def _again() -> RequestArrived:
    return RequestArrived(7, "m", 1, None)
