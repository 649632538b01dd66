"""When a gateway that gives no reply is doubted, and what it costs to doubt one that does well."""

from __future__ import annotations

from typing import Any, cast

from mainspring.client.requests import InferCall
from mainspring.client.silence import LEAST_NS, PART, Silence
from mainspring.messages.clients import InferRequest

MS = 1_000_000
STEP_NS = 10 * MS


def called(at_ns: int, slo_ns: int | None) -> InferCall:
    return InferCall(cast(Any, None), InferRequest(1, "m", (), slo_ns=slo_ns), (), at_ns, 10.0)


def doubts(silence: Silence, calls: list[InferCall], begin_ns: int, end_ns: int) -> list[int]:
    """Return when a request is to be tried elsewhere; the attempt shows nothing."""
    found = []
    for now_ns in range(begin_ns, end_ns, STEP_NS):
        if silence.look(now_ns, calls) is not None:
            found.append(now_ns)
            silence.undecided(now_ns)
    return found


def test_the_nearest_deadline_is_tried_first_after_a_part_of_its_slo() -> None:
    silence, long, short = Silence(0), called(0, 2_000 * MS), called(0, 1_000 * MS)
    for now_ns in range(0, 1_000 * MS // PART, STEP_NS):
        assert silence.look(now_ns, [long, short]) is None
    found = [at_ns for at_ns in range(250 * MS, 300 * MS, STEP_NS) if silence.look(at_ns, [long, short])]
    assert len(found) == 1, "one at a time"
    assert silence.tried is short


def test_what_has_no_deadline_or_a_very_near_one_is_not_tried() -> None:
    assert not doubts(Silence(0), [called(0, None)], 0, 5_000 * MS)
    assert not doubts(Silence(0), [called(0, LEAST_NS)], 0, 1_000 * MS)


def test_each_reply_puts_it_off_and_so_does_a_client_that_stood_still() -> None:
    silence, call = Silence(0), called(0, 1_000 * MS)
    for now_ns in range(0, 900 * MS, STEP_NS):
        assert silence.look(now_ns, [call]) is None
        if now_ns % (100 * MS) == 0:
            silence.heard(now_ns)
    stood = Silence(0)
    assert stood.look(0, [call]) is None
    assert stood.look(600 * MS, [call]) is None, "replies may have come meanwhile, and are yet to be read"


def test_false_doubts_become_rare() -> None:
    silence = Silence(0)
    found = []
    for at_ns in range(0, 60_000 * MS, 1_000 * MS):
        found += doubts(silence, [called(at_ns, 2_000 * MS)], at_ns, at_ns + 900 * MS)
        silence.heard(at_ns + 900 * MS)
    assert 3 <= len(found) <= 8, found


def test_a_gateway_is_left_for_a_while_or_until_it_replies() -> None:
    silence = Silence(0)
    silence.confirmed(0)
    assert silence.doubted(1_000 * MS)
    assert not silence.doubted(6_000 * MS)
    silence.confirmed(7_000 * MS)
    silence.heard(7_001 * MS)
    assert not silence.doubted(7_002 * MS)
