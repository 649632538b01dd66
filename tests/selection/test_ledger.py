"""Feedback is joined once for each row, and what is kept is bounded."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.selection.ledger import Answered, Feedback, Ledger
from mainspring.selection.outputs import Answer
from mainspring.selection.policy import Selected

MOST, MOST_BYTES, AGE_NS = 5, 6_000, 1_000


def answered(rows: int, context: str | None = None, values: int = 1) -> Answered:
    answer = Answer(np.zeros(rows), np.ones(rows), None)
    return Answered(context, {}, {"a": Selected(1, np.zeros((rows, values)))}, answer)


class Joining(RuleBasedStateMachine):
    """Answers and feedback in any order, beside a plain account of what was judged."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(MOST, MOST_BYTES, AGE_NS, first=10)
        self.now_ns = 0
        self.rows: dict[int, int] = {}
        self.judged: set[tuple[int, int]] = set()

    @rule(rows=st.integers(1, 3), values=st.integers(1, 200), wait_ns=st.integers(0, 400))
    def answer(self, rows: int, values: int, wait_ns: int) -> None:
        self.now_ns += wait_ns
        query_id = self.ledger.add(self.now_ns, answered(rows, values=values))
        assert query_id == 10 + len(self.rows)
        self.rows[query_id] = rows

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), at=st.lists(st.integers(-1, 3), min_size=1, max_size=4))
    def judge(self, data: st.DataObject, at: list[int]) -> None:
        query_id = data.draw(st.sampled_from([*self.rows, 1, 10 + len(self.rows)]))
        found, fresh, told = self.ledger.join(self.now_ns, query_id, at)
        assert len(told) == len(at)
        if query_id not in self.rows:
            assert told == [Feedback.UNKNOWN] * len(at)
        for row, what in zip(at, told, strict=True):
            known = query_id in self.rows and 0 <= row < self.rows[query_id]
            if what is Feedback.JOINED:
                assert known
                assert (query_id, row) not in self.judged, "none is counted twice"
                self.judged.add((query_id, row))
            elif what is Feedback.DUPLICATE:
                assert (query_id, row) in self.judged
        assert fresh == [row for row, what in zip(at, told, strict=True) if what is Feedback.JOINED]
        assert (found is not None) == bool(fresh)

    @invariant()
    def holds(self) -> None:
        self.ledger.validate()


TestJoining = Joining.TestCase
TestJoining.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_what_was_judged_whole_is_a_duplicate_and_what_is_old_late() -> None:
    ledger = Ledger(MOST, MOST_BYTES, AGE_NS)
    first = ledger.add(0, answered(2))
    assert ledger.join(1, first, [0, 1, 2])[2] == [Feedback.JOINED, Feedback.JOINED, Feedback.UNKNOWN]
    assert ledger.find(first) is None
    assert ledger.join(AGE_NS, first, [0])[2] == [Feedback.DUPLICATE]
    assert ledger.join(AGE_NS + 1, first, [0])[2] == [Feedback.LATE]
    assert ledger.join(AGE_NS + 1, first + 1, [0])[2] == [Feedback.UNKNOWN]


def test_the_oldest_makes_room_and_a_context_is_forgotten() -> None:
    ledger = Ledger(MOST, 1 << 20, AGE_NS)
    ids = [ledger.add(0, answered(1, context=f"user-{number % 2}")) for number in range(7)]
    assert [ledger.find(each) is not None for each in ids] == [False, False, *[True] * 5]
    assert ledger.forget("user-0") == 3
    assert ledger.join(0, ids[4], [0])[2] == [Feedback.LATE]
    assert ledger.join(0, ids[5], [0])[2] == [Feedback.JOINED]
    ledger.validate()
