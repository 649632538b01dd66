"""The ledger: answers that wait for feedback, bounded in count, bytes and age. Pure.

Feedback is joined to what the members predicted and with which probability they were selected, once for each
row. Ids rise; one that was given out and is not here any more is late, one that never was is unknown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from mainspring.selection.outputs import Answer
from mainspring.selection.policy import Inputs, Selected

ENTRY_BYTES = 600
"""Bytes that an entry takes beside its arrays."""
ARRAY_BYTES = 250
"""Bytes that an array takes beside its elements."""


class Feedback(StrEnum):
    """The fate of feedback for one row."""

    JOINED = "joined"
    LATE = "late"
    """The answer is not kept any more."""
    DUPLICATE = "duplicate"
    """There was feedback for this row before."""
    UNKNOWN = "unknown"
    """Nothing was ever answered under this id, or it has no such row."""


class Answered(msgspec.Struct, frozen=True, gc=False):
    """An answer that waits for feedback.

    Like all that the ledger keeps it is nothing that the garbage collector looks at: a hundred thousand of
    them would hold up the gateway's loop each time.
    """

    context: str | None
    inputs: Inputs
    selected: Mapping[str, Selected]
    answer: Answer


class _Entry(msgspec.Struct, gc=False):
    answered: Answered | None
    """None once all rows were judged."""
    at_ns: int
    judged: bytearray
    """1 for each row for which there was feedback."""
    size: int


class Ledger:
    """Answers by id, the oldest of which make room for new ones."""

    def __init__(self, most: int, most_bytes: int, age_ns: int, first: int = 1) -> None:
        """Keep at most ``most`` answers in ``most_bytes``, for ``age_ns``; give ids out from ``first`` on."""
        self._most = most
        self._most_bytes = most_bytes
        self._age_ns = age_ns
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._first = first
        self._next = first
        self.bytes = 0
        """Bytes that the entries take."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_id(self) -> int:
        """Return the id of the next answer."""
        return self._next

    def add(self, now_ns: int, answered: Answered) -> int:
        """Keep an answer; return the id under which feedback finds it."""
        query_id = self._next
        self._next += 1
        judged = bytearray(len(answered.answer.prediction))
        entry = _Entry(answered, now_ns, judged, ENTRY_BYTES + _bytes_of(answered))
        self._entries[query_id] = entry
        self.bytes += entry.size
        self.expire(now_ns)
        return query_id

    def join(
        self, now_ns: int, query_id: int, rows: Sequence[int]
    ) -> tuple[Answered | None, list[int], list[Feedback]]:
        """Return the answer, the rows that are joined to it now, and what became of each of ``rows``.

        The answer is None if no row is joined. What is joined here is not joined again.
        """
        self.expire(now_ns)
        entry = self._entries.get(query_id)
        if entry is None:
            given_out = self._first <= query_id < self._next
            return None, [], [Feedback.LATE if given_out else Feedback.UNKNOWN] * len(rows)
        fresh: list[int] = []
        told: list[Feedback] = []
        for row in rows:
            if not 0 <= row < len(entry.judged):
                told.append(Feedback.UNKNOWN)
            elif entry.judged[row]:
                told.append(Feedback.DUPLICATE)
            else:
                entry.judged[row] = 1
                fresh.append(row)
                told.append(Feedback.JOINED)
        answered = entry.answered if fresh else None
        if all(entry.judged):
            # Its id stays, so that what comes once more is known for a duplicate.
            entry.answered = None
            self.bytes -= entry.size - ENTRY_BYTES
            entry.size = ENTRY_BYTES
        return answered, fresh, told

    def find(self, query_id: int) -> Answered | None:
        """Return the answer of an id; None if it is not kept, or if all its rows had feedback."""
        entry = self._entries.get(query_id)
        return None if entry is None else entry.answered

    def expire(self, now_ns: int) -> None:
        """Forget what is too old, and the oldest beyond what may be kept."""
        while self._entries:
            entry = next(iter(self._entries.values()))
            too_many = len(self._entries) > self._most or self.bytes > self._most_bytes
            if not too_many and now_ns - entry.at_ns <= self._age_ns:
                return
            self._entries.popitem(last=False)
            self.bytes -= entry.size

    def clear(self) -> None:
        """Forget all answers: feedback for them is late."""
        self._entries.clear()
        self.bytes = 0

    def forget(self, context: str) -> int:
        """Forget the answers of a context; return how many there were."""
        gone = [
            query_id
            for query_id, entry in self._entries.items()
            if entry.answered is not None and entry.answered.context == context
        ]
        for query_id in gone:
            self.bytes -= self._entries.pop(query_id).size
        return len(gone)

    def validate(self) -> None:
        """Raise AssertionError if the bytes are not those of its entries, or the bounds don't hold."""
        assert self.bytes == sum(entry.size for entry in self._entries.values())
        assert len(self._entries) <= self._most
        assert self.bytes <= self._most_bytes or not self._entries
        assert list(self._entries) == sorted(self._entries)


def _bytes_of(answered: Answered) -> int:
    """Return the bytes of an answer's arrays, with what each of them takes by itself."""
    arrays = [*answered.inputs.values(), answered.answer.prediction, answered.answer.confidence]
    arrays += [each.output for each in answered.selected.values() if each.output is not None]
    if answered.answer.scores is not None:
        arrays.append(answered.answer.scores)
    return ARRAY_BYTES * len(arrays) + sum([each.nbytes for each in arrays])
