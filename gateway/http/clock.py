"""When the event loop's turn began, which neither asyncio nor uvloop tells: their clocks are never old.

A turn is: wait for sockets, read what each has, do what was put off. In a busy gateway it takes many
milliseconds: what is read last had come before all that, and what the next turn reads came while this one was
at work. So whatever is read is taken to have been there since the loop looked before, unless the loop has
waited in between, or has been at something else for so long that it must have looked again.
"""

from __future__ import annotations

import asyncio
import resource
from time import monotonic_ns

_GAP_NS = 5_000_000
"""From a turn's last read to the next turn's first one, at most."""
_LONG_NS = 500_000
"""From here on a turn's length matters to what is read behind it."""
_NOT_ASKED = -1


class TurnClock:
    """See the module's docstring; used in the loop's thread only. A turn begins when it is first asked."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_ns = 0
        """When the turn under way began; 0 if nobody has asked yet."""
        self._since_ns = 0
        """Since when what is read in it may have been there."""
        self._last_ns = 0
        """When the last turn began in which somebody asked."""
        self._ended_ns = 0
        """When all that it had to read was read."""
        self._waits = _NOT_ASKED
        """How often the thread had waited by then; `_NOT_ASKED` if that was not asked."""

    def read_at_ns(self) -> int:
        """Return since when what is being read now may have been there to be read."""
        if not self._began_ns:
            self._begin(monotonic_ns())
        return self._since_ns

    def spent_ns(self, now_ns: int) -> int:
        """Return how long the turn has taken."""
        if not self._began_ns:
            self._begin(now_ns)
        return now_ns - self._began_ns

    def _begin(self, now_ns: int) -> None:
        # Behind a long pause it has waited, which need not be asked, for that is a system call.
        near = now_ns - self._ended_ns < _GAP_NS
        waits = thread_waits() if near else _NOT_ASKED
        follows = near and waits == self._waits
        self._since_ns = self._last_ns if follows else now_ns
        self._waits = waits
        self._began_ns = self._last_ns = now_ns
        # It runs once all sockets are read, before the loop looks at them again.
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._ended_ns = monotonic_ns()
        if self._waits == _NOT_ASKED and self._ended_ns - self._began_ns > _LONG_NS:
            # What is read and worked off does not wait.
            self._waits = thread_waits()
        self._began_ns = 0


def thread_waits() -> int:
    """Return how often this thread has given its processor up by itself, as a loop does that waits."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
