"""Which of the requests that wait in the client will not be sent in time, as things go. Pure.

A thousand calls at once with one deadline would otherwise all be refused at one moment, just before it,
which is as late as it can be and too many to hand over in time. What the client has sent in the last moments
says how many more it can send until a deadline, and what was answered of each model, how many more will be,
those on their way first. What stands behind twice as many can be told now.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.client.call import InferCall

_SPAN_NS = 500_000_000
"""The pace is of the last such span."""
_LEAST_SPAN_NS = 100_000_000
"""It is not known before so much time has passed with requests waiting."""
_LEAST_SEEN = 8
"""Nor before this number was sent in it, or answered."""
_PERIOD_NS = 20_000_000
_EACH_NS = 5_000
"""Between two looks at what waits: the first, or this for each request that waits if that is longer."""
_MOST_AT_ONCE = 32
"""Refused at one look, so that answers pass between refusals."""
_DOUBT = 2
"""How much faster it may become."""


class Surplus:
    """The pace at which requests are sent and answered while others wait, and who is too far behind."""

    def __init__(self) -> None:
        self._sent = 0
        self._answered: Counter[str] = Counter()
        """By model."""
        self._marks: deque[tuple[int, int, Counter[str]]] = deque()
        """Instants of looks, and how many had been sent and answered by then."""
        self._next_ns = 0

    def sent(self) -> None:
        """Count a request that was sent."""
        self._sent += 1

    def answered(self, model: str) -> None:
        """Count a request that was answered with outputs, while others wait."""
        self._answered[model] += 1

    def idle(self) -> None:
        """Nothing waits: what was sent until now says nothing of the pace."""
        if self._marks:
            self._marks.clear()
            self._answered.clear()

    def next_look_ns(self) -> int:
        """Return when `of` is to be asked next, if anything waits."""
        return self._next_ns

    def of(self, now_ns: int, waiting: list[InferCall], sent: Iterable[InferCall]) -> list[InferCall]:
        """Return those that wait, nearest deadline first, and can hardly be sent, or answered, in time.

        ``sent`` are those that were sent and have no outcome; all have a deadline.
        """
        if now_ns < self._next_ns:
            return []
        if now_ns - self._next_ns > _LEAST_SPAN_NS:
            # Nobody looked for a while, for nothing waited.
            self._marks.clear()
        self._next_ns = now_ns + max(_PERIOD_NS, _EACH_NS * len(waiting))
        self._marks.append((now_ns, self._sent, self._answered.copy()))
        while now_ns - self._marks[0][0] > _SPAN_NS:
            self._marks.popleft()
        since_ns, sent_before, answered_before = self._marks[0]
        count, span_ns = self._sent - sent_before, now_ns - since_ns
        if span_ns < _LEAST_SPAN_NS or count < _LEAST_SEEN:
            return []
        answered = self._answered - answered_before
        kept, surplus = 0, []
        before: Counter[str] = Counter()
        """Of each model: what stands before a request, on its way or to be sent."""
        for deadline_ns, waits, _, call in _by_deadline(waiting, sent):
            model, spans_left = call.message.model, _DOUBT * (deadline_ns - now_ns) / span_ns
            slow = answered[model] >= _LEAST_SEEN and before[model] > spans_left * answered[model]
            if waits and (slow or kept > spans_left * count):
                surplus.append(call)
            else:
                kept += waits
                before[model] += 1
        # The last ones first: of one deadline, those that were called last.
        return surplus[-_MOST_AT_ONCE:]


def _by_deadline(
    waiting: Iterable[InferCall], sent: Iterable[InferCall]
) -> list[tuple[int, bool, int, InferCall]]:
    """Return deadline, whether it waits, key and call of all, the nearest deadline first."""
    both = (
        (call.deadline_ns or 0, waits, call.message.key, call)
        for calls, waits in ((sent, False), (waiting, True))
        for call in calls
    )
    return sorted(both)
