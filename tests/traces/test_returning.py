"""Who is refused and comes back, and when."""

from __future__ import annotations

import pytest

from mainspring.messages.codes import Reason
from mainspring.traces.arrival import Arrival
from mainspring.traces.returning import RETRIED, Returning, Returns, again_ns
from mainspring.traces.source import OpenSource


@pytest.mark.parametrize("reason", list(Reason))
def test_only_refusals_for_want_of_time_are_worth_another_try(reason: Reason) -> None:
    assert again_ns(100, 50, 1_000, reason) == (150 if reason in RETRIED else None)


def test_nobody_comes_back_at_the_deadline_or_without_one_or_unasked() -> None:
    assert again_ns(100, 50, 151, Reason.OVERLOADED) == 150
    assert again_ns(100, 50, 150, Reason.OVERLOADED) is None
    assert again_ns(100, 50, None, Reason.OVERLOADED) is None
    assert again_ns(100, 0, 1_000, Reason.OVERLOADED) is None


def test_each_comes_back_once_and_the_first_that_is_due_first() -> None:
    arrivals = [Arrival(0, "a", 1, 1_000), Arrival(5, "b", 1, 1_000)]
    source, returns = Returning(OpenSource(iter(arrivals)), 50), Returns()
    for key in range(2):
        returns.sent(key, source.take())
    assert source.done(0)
    assert returns.next_ns() is None
    assert returns.refused(30, 1, Reason.OVERLOADED)
    assert returns.refused(20, 0, Reason.OVERLOADED)
    assert returns.next_ns() == 70
    assert [returns.take()[0], returns.take()[1].model] == [0, "b"]
    assert not returns.refused(90, 0, Reason.OVERLOADED)
    assert returns.next_ns() is None


def test_what_was_answered_or_does_not_come_back_is_forgotten() -> None:
    returns = Returns()
    returns.sent(0, Arrival(0, "a", 1, 1_000, retry_ns=50))
    returns.sent(1, Arrival(0, "a", 1, 1_000))
    returns.answered(0)
    assert not returns.refused(10, 0, Reason.OVERLOADED)
    assert not returns.refused(10, 1, Reason.OVERLOADED)
