"""What a message was held on its way comes off its SLO, and what the way back takes off its due time."""

from __future__ import annotations

import random

from mainspring.gateway.core.effects import Accepted, Arrive, Refuse, Withdraw
from mainspring.messages.clients import ClientHello, InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.delays import HTTP, Back, Ways
from tests.gateway.core.test_state_machine import ALICE, SIGNATURE, core_with

MS = 1_000_000
OFFSET = 55_555_555_555
PEER = b"peer"


def request(sent_ns: int | None, slo_ns: int | None = 100 * MS) -> InferRequest:
    return InferRequest(1, "m", (), slo_ns, sent_ns=sent_ns)


def greeted() -> Ways:
    ways = Ways()
    ways.hello(OFFSET + 1 * MS, PEER, ClientHello(1, "x", sent_ns=0))
    return ways


def test_what_a_message_was_held_is_taken_off() -> None:
    ways = greeted()
    assert ways.arrived(OFFSET + 50 * MS, PEER, request(40 * MS)).slo_ns == 91 * MS
    assert ways.arrived(OFFSET + 61 * MS, PEER, request(60 * MS)).slo_ns == 100 * MS


def test_what_is_too_late_is_still_a_request() -> None:
    assert greeted().arrived(OFFSET + 999 * MS, PEER, request(0)).slo_ns == 1


def test_what_has_no_stamp_or_no_deadline_is_left_alone() -> None:
    ways = greeted()
    for each in (request(None), request(0, None), request(0, 0), request(0, -5)):
        assert ways.arrived(OFFSET + 900 * MS, PEER, each) is each


def test_clients_are_apart_and_a_new_hello_begins_again() -> None:
    ways = greeted()
    other = request(7_000 * MS)
    assert ways.arrived(OFFSET, b"other", other) is other, "the first of a client without a stamped hello"
    ways.hello(OFFSET + 500 * MS, PEER, ClientHello(1, "x", sent_ns=400 * MS))
    assert ways.arrived(OFFSET + 600 * MS, PEER, request(500 * MS)).slo_ns == 100 * MS
    ways.forget(PEER)
    assert ways.arrived(OFFSET + 9_000 * MS, PEER, request(0)).slo_ns == 100 * MS


def test_an_slo_never_grows_on_its_way() -> None:
    random_, ways, now_ns = random.Random(1), Ways(), 0
    for _ in range(1_000):
        now_ns += random_.randrange(30 * MS)
        stamp = random_.choice([None, 0, now_ns, -now_ns, 1 << 62, -(1 << 62)])
        found = ways.arrived(now_ns, PEER, request(stamp))
        assert found.slo_ns is not None
        assert 1 <= found.slo_ns <= 100 * MS


def accepted(back_ns: int = 0, *, late_outputs: bool = True) -> Accepted:
    return Accepted("m", 1, 100 * MS, (0,), (0,), SIGNATURE, back_ns=back_ns, late_outputs=late_outputs)


def test_the_controller_gets_the_deadline_less_the_way_back() -> None:
    core = core_with()
    core.submit(0, ALICE, 1, accepted(30 * MS), [b""])
    (arrive,) = [each for each in core.drain() if isinstance(each, Arrive)]
    assert arrive.deadline_ns == 70 * MS
    core.validate()


def test_who_wants_no_late_outputs_hears_of_it_before_the_deadline() -> None:
    core = core_with()
    core.submit(0, ALICE, 1, accepted(30 * MS, late_outputs=False), [b""])
    core.submit(0, ALICE, 2, accepted(30 * MS), [b""])
    core.drain()
    core.tick(70 * MS)
    (refuse,) = [each for each in core.drain() if isinstance(each, Refuse)]
    assert (refuse.key, refuse.reason) == (1, Reason.TIMED_OUT)
    assert "deadline" in refuse.detail
    core.validate()


def test_an_slo_too_short_to_ask_the_controller_waits_for_its_word() -> None:
    core = core_with()
    short = Accepted("m", 1, MS // 10, (0,), (0,), SIGNATURE, late_outputs=False)
    core.submit(0, ALICE, 1, short, [b""])
    core.drain()
    core.tick(10 * MS)
    assert not core.drain()
    core.tick(20 * MS)
    assert [type(each) for each in core.drain()] == [Withdraw, Refuse]
    core.validate()


def test_it_is_nothing_before_an_answer_was_seen_and_for_best_effort() -> None:
    back = Back()
    assert back.expected_ns(HTTP, 4_000, 100 * MS, 0) == 0
    back.took(HTTP, 4_000, 5 * MS, 0)
    assert back.expected_ns(HTTP, 4_000, None, 0) == 0
    assert back.expected_ns(HTTP, 4_000, 100 * MS, 0) >= 5 * MS


def test_ways_and_sizes_are_apart() -> None:
    back = Back()
    for _ in range(50):
        back.took(HTTP, 100, 1 * MS, 0)
        back.took(HTTP, 1 << 20, 8 * MS, 0)
        back.took(b"slow reader", 100, 90 * MS, 0)
    assert back.expected_ns(HTTP, 100, 1_000 * MS, 0) < 2 * MS
    assert 8 * MS <= back.expected_ns(HTTP, 1 << 20, 1_000 * MS, 0) < 10 * MS
    assert back.expected_ns(b"slow reader", 100, 1_000 * MS, 0) >= 90 * MS
    assert back.expected_ns(b"another", 100, 1_000 * MS, 0) == 0


def test_it_takes_a_part_of_an_slo_at_most_and_is_forgotten() -> None:
    back = Back()
    back.took(HTTP, 100, 500 * MS, 0)
    assert back.expected_ns(HTTP, 100, 80 * MS, 0) == 20 * MS
    assert back.expected_ns(HTTP, 100, 80 * MS, 60_000 * MS) < 1 * MS


def test_what_it_remembers_is_bounded() -> None:
    back = Back()
    for number in range(10_000):
        back.took(b"%d" % number, 100, MS, 0)
    assert len(back._estimates) <= 4_096
    assert back.expected_ns(b"9999", 100, 100 * MS, 0) > 0
