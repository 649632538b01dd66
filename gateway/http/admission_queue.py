"""The queue of requests for inference before the gateway works on them: under overload it refuses some early.

A gateway that is asked for more than it can work off would spend whole turns of its loop on new requests,
while answers to old ones wait; every request would be taken, and every answer late. So new requests have a
share of each turn. What does not fit waits, in order. If that wait stands - it has not been short for a while
- what has waited too long is refused unread, which costs a fraction of working it off. A burst alone is no
such case: it is over before anything is refused. The idea is CoDel's, of routers' queues (Nichols and
Jacobson, 2012): the queue that stands is the one that does harm.

At 1.5 of its saturation the gateway answers 0.57 and 0.62 of its saturation in time with this queue, and
nothing (0.00; 0.00) without it. Without `TurnClock` alone it is 0.26 and 0.60, with both 0.56 and 0.69
(`make bench-http`, interpreted, in turns on a busy machine of 2 cores, 28 November).
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

from mainspring.gateway.http.exchange import Exchange, Handler, attempt
from mainspring.messages.codes import Reason

_GAP_NS = 5_000_000
"""Most nanoseconds from a turn's last read to the next turn's first one."""
_LONG_NS = 500_000
"""Nanoseconds from which a turn's length matters to what is read behind it."""
_NOT_ASKED = -1


class TurnClock:
    """The instant when the event loop's turn began, which neither asyncio nor uvloop tells.

    A turn is: wait for sockets, read what each has, do what was put off. In a busy gateway it takes many
    milliseconds: what is read last had come before all that, and what the next turn reads came while this one
    was at work. So whatever is read is taken to have been there since the loop looked before, unless the loop
    has waited in between, or has been at something else for so long that it must have looked again.

    Used in the loop's thread only. A turn begins when it is first asked.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_ns = 0
        """Instant at which the turn under way began; 0 if nobody has asked yet."""
        self._since_ns = 0
        """Instant since which what is read in the turn may have been there."""
        self._last_ns = 0
        """Instant at which the last turn began in which somebody asked."""
        self._ended_ns = 0
        """Instant at which all that it had to read was read."""
        self._waits = _NOT_ASKED
        """Number of times that the thread had waited by then; `_NOT_ASKED` if that was not asked."""

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


SHARE_NS = 1_000_000
"""Nanoseconds of one turn of the loop for new requests. So short that a request, which takes two turns more
(to pass its inputs on and its outputs), is not held up by the turns' length."""
SHORT_NS = 5_000_000
"""A wait below this is short."""
STANDING_NS = 100_000_000
"""Nanoseconds that no wait must have been short before requests are refused."""
ALERT_NS = 1_000_000_000
"""Nanoseconds after a refusal in which the wait is taken to stand as soon as it is too long."""

OnShed = Callable[[Exchange, Reason], None]


class AdmissionQueue:
    """See the module's docstring; used in the loop's thread only."""

    def __init__(
        self, work: Handler, longest_wait_ns: int, on_shed: OnShed, clock: TurnClock | None = None
    ) -> None:
        """``work`` works a request off; ``on_shed`` is called for each that is refused instead.

        ``clock`` is the loop's, if somebody else asks it already; a second one costs a system call a turn.
        """
        self._work = work
        self._longest_wait_ns = longest_wait_ns
        self._on_shed = on_shed
        self._clock = clock or TurnClock()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Exchange] = deque()
        self._long_since_ns = 0
        """Instant since which no wait was short; 0 if the last one was."""
        self._alert_until_ns = 0

    def take(self, exchange: Exchange) -> None:
        """Work a request off, now or soon."""
        if not self._waiting and self._clock.spent_ns(monotonic_ns()) < SHARE_NS:
            self._work(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Work off what waits, for a share of the loop's turn."""
        began_ns = now_ns = monotonic_ns()
        while self._waiting and now_ns - began_ns < SHARE_NS:
            exchange = self._waiting.popleft()
            if exchange.abandoned:
                continue
            waited_ns = now_ns - exchange.arrived_ns
            if self._stands(now_ns, waited_ns):
                self._shed(exchange, waited_ns)
            else:
                attempt(self._work, exchange)
            now_ns = monotonic_ns()
        if self._waiting:
            self._loop.call_soon(self._turn)
        else:
            self._long_since_ns = 0

    def _stands(self, now_ns: int, waited_ns: int) -> bool:
        """Return whether a request that has waited this long is to be refused."""
        if waited_ns < SHORT_NS:
            self._long_since_ns = 0
        elif not self._long_since_ns:
            self._long_since_ns = now_ns
        if waited_ns <= self._longest_wait_ns:
            return False
        long = self._long_since_ns and now_ns - self._long_since_ns > STANDING_NS
        if long:
            self._alert_until_ns = now_ns + ALERT_NS
        return now_ns < self._alert_until_ns

    def _shed(self, exchange: Exchange, waited_ns: int) -> None:
        self._on_shed(exchange, Reason.OVERLOADED)
        exchange.refuse(
            Reason.OVERLOADED,
            f"more comes than this gateway can work off, and this request has waited for "
            f"{waited_ns / 1e6:.0f} ms; ask for less, or run another gateway",
        )
