"""The offset between a peer's clock and the controller's. Pure: instants are arguments.

A ping leaves the controller at ``c0``, reaches the peer at ``p1``; the pong leaves the peer at ``p2`` and
reaches the controller at ``c3``. With ``offset`` = peer's clock - controller's clock::

    p1 - c0 = delay out  + offset
    c3 - p2 = delay back - offset

Queueing only adds to delays, so the minimum of each over a sliding window is that of the wire alone. The
offset is half of the difference of the two minima; its error is half of the difference between the fastest
delays of the two directions, and so at most half of the minimum round trip.
"""

from __future__ import annotations

from collections import deque

WINDOW_SAMPLES = 1024
"""Samples over which the minima are taken."""


class SlidingMinimum:
    """The minimum of the last ``window`` values, in constant time for each (a monotone queue)."""

    __slots__ = ("_candidates", "_count", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._count = 0
        self._candidates: deque[tuple[int, int]] = deque()

    def add(self, value: int) -> None:
        """Add the next value."""
        candidates = self._candidates
        while candidates and candidates[-1][1] >= value:
            candidates.pop()
        candidates.append((self._count, value))
        self._count += 1
        if candidates[0][0] + self._window < self._count:
            candidates.popleft()

    @property
    def value(self) -> int:
        """The minimum; there must have been a value."""
        return self._candidates[0][1]


class ClockOffset:
    """Translates instants between the controller's clock and one peer's; all in nanoseconds."""

    __slots__ = ("_back", "_out", "min_rtt_ns", "offset_ns", "samples")

    def __init__(self, window: int = WINDOW_SAMPLES) -> None:
        self._out = SlidingMinimum(window)
        self._back = SlidingMinimum(window)
        self.offset_ns = 0
        """The peer's clock less the controller's; 0 before the first sample."""
        self.min_rtt_ns = 0
        """The sum of the smallest delays out and back; 0 before the first sample."""
        self.samples = 0
        """The number of samples so far."""

    def add(self, ping_sent_ns: int, peer_received_ns: int, peer_sent_ns: int, pong_received_ns: int) -> None:
        """Take in one ping and its pong.

        Raises ValueError, and changes nothing, if they contradict each other: the peer answered before it
        received the ping, or held it for longer than the whole round trip took.
        """
        held_ns = peer_sent_ns - peer_received_ns
        round_ns = pong_received_ns - ping_sent_ns
        if not 0 <= held_ns <= round_ns:
            raise ValueError(f"a pong held for {held_ns} ns in a round of {round_ns} ns is impossible")
        self._out.add(peer_received_ns - ping_sent_ns)
        self._back.add(pong_received_ns - peer_sent_ns)
        self.samples += 1
        out_ns, back_ns = self._out.value, self._back.value
        self.offset_ns = (out_ns - back_ns) // 2
        # A clock that drifts within the window can push the sum below zero.
        self.min_rtt_ns = max(0, out_ns + back_ns)

    def to_controller(self, peer_ns: int) -> int:
        """Return an instant of the peer's clock on the controller's."""
        return peer_ns - self.offset_ns
