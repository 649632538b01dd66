"""Which request goes next, and how much may be on its way."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mainspring.client.requests import InferCall, Outbox
from mainspring.messages.clients import InferRequest
from tests.fuzz import seeded

MS = 1_000_000


def call(
    key: int, slo_ms: float | None = None, size: int = 100, called_ms: float = 0, model: str = "m"
) -> InferCall:
    slo_ns = None if slo_ms is None else round(slo_ms * MS)
    frames = [np.zeros(size, np.uint8).data]
    return InferCall(None, InferRequest(key, model, (), slo_ns), frames, round(called_ms * MS), 1)  # type: ignore[arg-type]


def send_all(
    outbox: Outbox, allowed: int = 1_000, *, acknowledged: bool = True, now_ns: int = 0
) -> list[int]:
    keys = []
    while (found := outbox.next(allowed, acknowledged=acknowledged)) is not None:
        outbox.sent(now_ns, found, acknowledge=outbox.acknowledgement_due(now_ns, found))
        outbox.validate()
        keys.append(found.message.key)
    return keys


def test_the_nearest_deadline_goes_first_and_best_effort_last() -> None:
    outbox = Outbox()
    for each in (call(1), call(2, 500), call(3, 50), call(4, 30, called_ms=40)):
        outbox.add(each)
    assert send_all(outbox) == [3, 4, 2, 1]


def test_no_more_bytes_are_on_their_way_than_may_be_until_they_are_read() -> None:
    outbox = Outbox(max_unread_bytes=1_000)
    for key in range(10):
        outbox.add(call(key, 100, size=400))
    assert send_all(outbox) == [0, 1]
    assert outbox.read(1) == 0, "and 0, which was sent before"
    assert send_all(outbox) == [2, 3]
    assert outbox.read(2) == 0
    assert outbox.read(2) is None
    assert send_all(outbox) == [4]


def test_all_that_waits_can_be_taken_out() -> None:
    outbox, ended = Outbox(), call(2, 10)
    for each in (call(1, 500), ended, call(3, 50), call(4)):
        outbox.add(each)
    ended.ended = True
    assert [each.message.key for each in outbox.take_all()] == [3, 1, 4]
    assert send_all(outbox) == []


def test_a_message_beyond_the_bound_goes_alone() -> None:
    outbox = Outbox(max_unread_bytes=1_000)
    for key in range(3):
        outbox.add(call(key, 100, size=5_000))
    assert send_all(outbox) == [0]
    outbox.read(0)
    assert send_all(outbox) == [1]


def test_without_acknowledgements_bytes_are_not_bounded() -> None:
    outbox = Outbox(max_unread_bytes=1)
    for key in range(3):
        outbox.add(call(key, 100))
    assert send_all(outbox, acknowledged=False) == [0, 1, 2]


def test_requests_in_flight_are_bounded_until_they_end() -> None:
    outbox = Outbox(max_in_flight=3)
    for key in range(6):
        outbox.add(call(key, 100))
    assert send_all(outbox) == [0, 1, 2]
    outbox.ended(1)
    assert send_all(outbox) == [3]
    outbox.link_lost()
    assert send_all(outbox, allowed=1) == [4], "the gateway's bound holds too"


def test_best_effort_leaves_room_for_deadlines() -> None:
    outbox = Outbox(max_in_flight=4)
    for key in range(6):
        outbox.add(call(key))
    assert send_all(outbox) == [0, 1]
    outbox.add(call(10, 100))
    outbox.add(call(11, 100))
    assert send_all(outbox) == [10, 11]


def test_an_acknowledgement_is_asked_for_in_parts_of_the_bound_and_now_and_then() -> None:
    outbox = Outbox(max_unread_bytes=8_000)
    first = call(1, size=10)
    assert outbox.acknowledgement_due(0, first), "to learn what a round trip takes"
    outbox.sent(0, first, acknowledge=True)
    asked = []
    for key in range(2, 40):
        each = call(key, size=300)
        asked.append(outbox.acknowledgement_due(0, each))
        outbox.sent(0, each, acknowledge=asked[-1])
    assert asked == ([False, False, False, True] * 10)[:38]
    assert outbox.acknowledgement_due(2_000 * MS, first)


def test_what_has_no_time_left_is_given_back_before_its_deadline() -> None:
    outbox = Outbox()
    for key in range(1_000):
        outbox.add(call(key, 1_000))
    outbox.add(call(5_000))
    now_ns, refused = 0, []
    while (wakeup_ns := outbox.next_wakeup_ns(0)) is not None:
        now_ns = max(now_ns, wakeup_ns)
        found = outbox.hopeless(now_ns, 0)
        assert found is not None
        refused.append(found.message.key)
        now_ns += 100_000
    assert sorted(refused) == list(range(1_000))
    assert now_ns < 1_000 * MS, "the last one too, though each takes its time"
    assert send_all(outbox) == [5_000]


def test_the_way_back_is_taken_off_a_share_of_the_slo_at_most() -> None:
    outbox = Outbox()
    outbox.add(call(1, 100))
    assert outbox.hopeless(80 * MS, 10 * MS) is None
    assert outbox.next_wakeup_ns(10_000 * MS) == 75 * MS
    assert outbox.hopeless(90 * MS, 10 * MS) is not None


@seeded(20)
def test_any_order_of_events_keeps_the_bounds(seed: int) -> None:
    random_ = random.Random(seed)
    outbox, keys, flying = Outbox(7, 2_000), 0, []
    for _ in range(400):
        match random_.randrange(5):
            case 0 | 1:
                keys += 1
                outbox.add(call(keys, random_.choice([None, 10, 500]), random_.choice([1, 300, 9_000])))
            case 2:
                flying += send_all(outbox, 5)
                assert len(flying) <= 5
            case 3 if flying:
                key = flying.pop(random_.randrange(len(flying)))
                outbox.read(key)
                outbox.ended(key)
            case 4 if random_.random() < 0.05:
                outbox.link_lost()
                flying.clear()
        outbox.validate()


@pytest.mark.parametrize("bounds", [{"max_in_flight": 0}, {"max_unread_bytes": 0}])
def test_a_bound_of_nothing_is_a_clear_error(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Outbox(**bounds)
