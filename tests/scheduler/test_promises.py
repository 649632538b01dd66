"""Requests that come after a query was admitted take no time that it needs."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Command, Infer
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.queries import QueryStep
from tests.scheduler.hand import MS, Hand, reasons, spec

QUERY = 77
START_MS = 100.0
ROWS = 40
"""Ten batches of four rows, each of which takes 10 ms."""


def play(hand: Hand, slo_ms: float, until_ms: float, every_ms: float) -> list[Command]:
    """Have a query come, and two single requests of two models each few ms after it, and end each
    INFER as it is predicted to; return all that came."""
    due_ns = int((START_MS + slo_ms) * MS)
    found = hand.feed(START_MS, QueryArrived(QUERY, due_ns, (QueryStep("m", ROWS),)))
    for index in range(ROWS // 4):
        found += hand.feed(START_MS, RequestArrived(1_000 + index, "m", 4, due_ns, query=QUERY))
    running = [each for each in found if isinstance(each, Infer)]
    at_ms, id_ = START_MS, 2_000
    while at_ms < until_ms:
        ends_ms = min([_end_ms(each) for each in running], default=until_ms)
        if ends_ms <= at_ms + every_ms:
            action = min(running, key=_end_ms)
            running.remove(action)
            more = hand.ok(ends_ms, action)
        else:
            at_ms += every_ms
            more = hand.request(at_ms, id_, "n", 25) + hand.request(at_ms, id_ + 1, "o", 25)
            id_ += 2
        found += more
        running += [each for each in more if isinstance(each, Infer)]
    return found


def _end_ms(action: Infer) -> float:
    return (action.predicted_begin_ns + action.predicted_duration_ns) / MS


@pytest.mark.parametrize("policy", ["mainspring", "edf"])
def test_a_query_is_whole_in_time_whatever_comes_after_it(policy: str) -> None:
    hand = Hand(spec("m"), spec("n"), spec("o"), policy=policy)  # type: ignore[arg-type]
    for at_ms, model in zip((0, 20, 40), ("m", "n", "o"), strict=True):
        hand.warm(model, now_ms=at_ms)
    commands = play(hand, slo_ms=200, until_ms=320, every_ms=4)
    pieces = [
        each for each in commands if isinstance(each, Infer) and each.model == "m" and each.rows == (4,)
    ]
    assert len(pieces) == ROWS // 4
    assert max(map(_end_ms, pieces)) < START_MS + 200
    assert QUERY not in hand.scheduler.cluster.queries
    # What can't be served beside it is refused, and more than nothing is served.
    assert set(reasons(commands)) <= {Reason.DEADLINE_PASSED, Reason.OVERLOADED, Reason.DEADLINE_UNREACHABLE}
    assert [each for each in commands if isinstance(each, Infer) and each.model != "m"]


def test_a_query_that_has_time_holds_nobody_up() -> None:
    hand = Hand(spec("m"), spec("n"), policy="mainspring")  # type: ignore[arg-type]
    for at_ms, model in ((0, "m"), (20, "n")):
        hand.warm(model, now_ms=at_ms)
    due_ns = 2_000 * MS
    commands = hand.feed(START_MS, QueryArrived(QUERY, due_ns, (QueryStep("m", ROWS),)))
    for index in range(ROWS // 4):
        commands += hand.feed(START_MS, RequestArrived(1_000 + index, "m", 4, due_ns, query=QUERY))
    first = next(each for each in commands if isinstance(each, Infer))
    hand.request(START_MS + 2, 2_000, "n", 60)
    after = hand.ok(_end_ms(first), first)
    assert [each.model for each in after if isinstance(each, Infer)] == ["n"]
