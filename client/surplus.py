"""Which of the requests that wait in the client will not be sent in time, as things go. Pure.

A thousand calls at once with one deadline would otherwise all be refused at one moment, just before it, which
is as late as it can be and too many to hand over in time. What the client has sent in the last moments says
how many more it can send until a deadline; what stands behind twice as many can be told now.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.client.call import InferCall

_SPAN_NS = 500_000_000
"""The pace is of the last such span."""
_LEAST_SPAN_NS = 100_000_000
"""It is not known before so much time has passed with requests waiting."""
_LEAST_SENT = 8
"""Nor before so many were sent in it."""
_PERIOD_NS = 20_000_000
_EACH_NS = 5_000
"""Between two looks at what waits: the first, or this for each request that waits if that is longer."""
_MOST_AT_ONCE = 32
"""Refused at one look, so that answers pass between refusals."""
_DOUBT = 2
"""How much faster it may become."""


class Surplus:
    """The pace at which requests leave the client while others wait, and who is too far behind."""

    def __init__(self) -> None:
        self._sent = 0
        self._marks: deque[tuple[int, int]] = deque()
        """Instants of looks, and how many had been sent by then."""
        self._next_ns = 0

    def sent(self) -> None:
        """Count a request that was sent."""
        self._sent += 1

    def idle(self) -> None:
        """Nothing waits: what was sent until now says nothing of the pace."""
        if self._marks:
            self._marks.clear()

    def next_look_ns(self) -> int:
        """Return when `of` is to be asked next, if anything waits."""
        return self._next_ns

    def of(self, now_ns: int, waiting: list[InferCall]) -> list[InferCall]:
        """Return those of the requests with a deadline, nearest first, that can hardly be sent in time."""
        if now_ns < self._next_ns:
            return []
        if now_ns - self._next_ns > _LEAST_SPAN_NS:
            # Nobody looked for a while, for nothing waited.
            self._marks.clear()
        self._next_ns = now_ns + max(_PERIOD_NS, _EACH_NS * len(waiting))
        self._marks.append((now_ns, self._sent))
        while now_ns - self._marks[0][0] > _SPAN_NS:
            self._marks.popleft()
        since_ns, before = self._marks[0]
        sent = self._sent - before
        if now_ns - since_ns < _LEAST_SPAN_NS or sent < _LEAST_SENT:
            return []
        possible = _DOUBT * sent / (now_ns - since_ns)
        kept, surplus = 0, []
        for call in waiting:
            assert call.deadline_ns is not None
            if kept <= possible * (call.deadline_ns - now_ns):
                kept += 1
            else:
                surplus.append(call)
        # The last ones first: of one deadline, those that were called last.
        return surplus[-_MOST_AT_ONCE:]
