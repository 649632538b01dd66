"""How long requests without a reply are waited for, in the replayer's time."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.messages.codes import Reason
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import LOOK_NS, PENDING, UNANSWERED, Records, Stragglers


def waiting(records: Records, longest_s: int = 120) -> Stragglers:
    """Return the wait of a run whose sending ended at 10 s."""
    return Stragglers(
        records,
        guard_ns=2 * SECOND_NS,
        best_effort_ns=75 * SECOND_NS,
        longest_ns=longest_s * SECOND_NS,
        ended_ns=10 * SECOND_NS,
    )


def over_after_s(stragglers: Stragglers, replies: dict[int, int] | None = None) -> float:
    """Return when the wait is over, asked as the replayer asks; ``replies`` are steps at which one comes."""
    now_ns, step = 10 * SECOND_NS, 0
    while not stragglers.over(now_ns):
        if replies and step in replies:
            stragglers.replied(now_ns)
        now_ns = max(now_ns + 1, stragglers.next_ns())
        step += 1
    return now_ns / SECOND_NS


def sent_at_10_s(slos_s: Sequence[int | None]) -> Records:
    records = Records()
    for slo_s in slos_s:
        slo_ns = None if slo_s is None else slo_s * SECOND_NS
        records.sent(10 * SECOND_NS, 10 * SECOND_NS, "m", 1, slo_ns)
    return records


def outcomes(records: Records) -> list[int]:
    return records.columns()[1]["outcome"].tolist()  # type: ignore[no-any-return]


def test_a_request_is_waited_for_until_its_deadline_and_the_guard_have_passed_and_is_lost_then() -> None:
    for slos_s, latest_s in (([1], 13), ([1, 5], 17), ([1, None], 85)):
        records = sent_at_10_s(slos_s)
        over_s = over_after_s(waiting(records))
        assert latest_s <= over_s <= latest_s + LOOK_NS / SECOND_NS
        assert set(outcomes(records)) == {PENDING}


def test_nothing_is_waited_for_where_nothing_is_missing() -> None:
    records = sent_at_10_s([1])
    records.error(0, 11 * SECOND_NS, Reason.OVERLOADED)
    assert over_after_s(waiting(records)) == 10


def test_a_request_that_was_answered_meanwhile_holds_nothing_up() -> None:
    records = sent_at_10_s([1, None])
    stragglers = waiting(records)
    assert not stragglers.over(10 * SECOND_NS)
    records.error(1, 11 * SECOND_NS, Reason.OVERLOADED)
    stragglers.replied(11 * SECOND_NS)
    assert over_after_s(stragglers) < 14


def test_while_replies_come_the_rest_is_waited_for_and_at_the_limit_it_is_unanswered() -> None:
    records = sent_at_10_s([1, 1])
    always = {step: step for step in range(1_000)}
    assert over_after_s(waiting(records, longest_s=30), always) == 40
    assert outcomes(records) == [UNANSWERED, UNANSWERED]


def test_at_the_limit_what_is_overdue_in_silence_is_lost_and_the_rest_unanswered() -> None:
    records = sent_at_10_s([1, 60, None])
    assert over_after_s(waiting(records, longest_s=20)) == 30
    assert outcomes(records) == [PENDING, UNANSWERED, UNANSWERED]
