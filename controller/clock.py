"""A peer's clock against the controller's: offset, rate, and how wrong they may be. Pure: instants are
arguments.

A ping leaves the controller at ``c0`` and reaches the peer at ``p1``; the pong leaves the peer at ``p2`` and
reaches the controller at ``c3``. With ``offset(c)`` = peer's clock - controller's clock at instant ``c``, and
because no message arrives before it was sent::

    offset(c0) <= p1 - c0
    offset(c3) >= p2 - c3

So each exchange is a *range* of offsets. While the peer's clock has a steady rate, the offset is a straight
line through all ranges: below the convex hull of their upper ends, and above that of their lower ends.

* The *estimate* is the line in the middle of the widest corridor between the two hulls. Queueing narrows
  ranges at random, and the corridor is that of the quickest exchanges (Zhang, Liu and Xia, *Clock
  synchronization algorithms for network measurements*, INFOCOM 2002, fit lines to hulls alike).
* The *bound* of its error is its distance to the lines that pass through all ranges and rise most and least:
  about half of the least round trip, as no exchange can tell a slow way out from a slow way back. These two
  are kept as ranges arrive (O'Rourke, *An on-line algorithm for fitting straight lines between data ranges*,
  CACM 24(9), 1981). Rates beyond `MAX_RATE` are left out.

All is O(1) amortised for each exchange. Two fits overlap, so that one always covers a whole window.
If no line passes through a new range, the rate has changed or the clock has stepped, and the latest ranges
that agree decide from then on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

WINDOW_SAMPLES: Final = 1024
"""Exchanges that the estimate is made from at least, once there are as many; at most half as many more."""
LATEST_SAMPLES: Final = 16
"""Exchanges that are looked through after a contradiction for the latest that agree."""
MAX_RATE: Final = 500e-6
"""Largest rate at which a peer's clock may gain or lose, in seconds for a second: more than any quartz, and
as much as the kernel slews a clock for NTP."""
AHEAD_NS: Final = 10_000_000_000
"""Offsets of later instants than this after the last exchange are taken for that at this instant."""


class Range(NamedTuple):
    """The result of an exchange: at ``at_ns`` of the controller's clock the offset was from low to high."""

    at_ns: int
    low_ns: int
    high_ns: int


class Line(NamedTuple):
    """Offsets over time."""

    at_ns: int
    offset_ns: int
    rate: float
    """The peer's clock gains this much, in seconds for a second."""

    def at(self, instant_ns: int) -> int:
        """Return the offset at an instant of the controller's clock."""
        return self.offset_ns + round(self.rate * (instant_ns - self.at_ns))


class Hull:
    """The convex hull of points that come from left to right, without those that no line of interest touches.

    ``sign``: 1 for the hull above the points, -1 for that below them.
    """

    __slots__ = ("at_ns", "offsets_ns", "sign")

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.at_ns: list[int] = []
        """The instants of its points, of which there is at least one once one was added."""
        self.offsets_ns: list[int] = []

    def add(self, at_ns: int, offset_ns: int) -> None:
        """Add the next point."""
        while len(self.at_ns) > 1 and self._beyond(-2, -1, at_ns, offset_ns) <= 0:
            self.at_ns.pop()
            self.offsets_ns.pop()
        self.at_ns.append(at_ns)
        self.offsets_ns.append(offset_ns)

    def tangent(self, at_ns: int, offset_ns: int) -> float:
        """Return the rate of the line from the hull to a point right of it, with the hull on one side.

        Points that no later tangent can touch are forgotten.
        """
        passed = 0
        while passed + 1 < len(self.at_ns) and self._beyond(passed, passed + 1, at_ns, offset_ns) >= 0:
            passed += 1
        del self.at_ns[:passed], self.offsets_ns[:passed]
        return (offset_ns - self.offsets_ns[0]) / (at_ns - self.at_ns[0])

    def rate(self, index: int) -> float | None:
        """Return the rate of the edge behind a point, by its index; None if it has none."""
        if not 0 <= index < len(self.at_ns) - 1:
            return None
        rise_ns = self.offsets_ns[index + 1] - self.offsets_ns[index]
        return rise_ns / (self.at_ns[index + 1] - self.at_ns[index])

    def _beyond(self, first: int, following: int, at_ns: int, offset_ns: int) -> int:
        """Return a positive number if a point is outside of the line from another one to a later one."""
        first_ns, first_offset_ns = self.at_ns[first], self.offsets_ns[first]
        rise_ns = self.offsets_ns[following] - first_offset_ns
        run_ns = self.at_ns[following] - first_ns
        return self.sign * (rise_ns * (at_ns - first_ns) - (offset_ns - first_offset_ns) * run_ns)


class Fit:
    """The lines through all ranges given to it, in the order of their instants."""

    __slots__ = ("_highs", "_lows", "_narrow_ns", "falling", "middle", "rising", "samples", "width_ns")

    def __init__(self, first: Range) -> None:
        at_ns, low_ns, high_ns = first
        self._lows, self._highs = Hull(1), Hull(-1)
        self._lows.add(at_ns, low_ns)
        self._highs.add(at_ns, high_ns)
        self._narrow_ns = at_ns
        """Instant at which the corridor was narrowest."""
        self.rising = Line(at_ns, high_ns, MAX_RATE)
        """Highest line from now on of the lines through all ranges."""
        self.falling = Line(at_ns, low_ns, -MAX_RATE)
        """The one that is lowest from now on."""
        self.middle = Line(at_ns, (low_ns + high_ns) // 2, 0.0)
        """The estimate, as the last `find_corridor` found it."""
        self.width_ns = high_ns - low_ns
        """Width of the corridor, along the axis of offsets."""
        self.samples = 1

    def outside_ns(self, found: Range) -> int:
        """Return how far a later range is from all lines: above them if positive, 0 if one passes it."""
        above_ns = found.low_ns - self.rising.at(found.at_ns)
        below_ns = self.falling.at(found.at_ns) - found.high_ns
        return above_ns if above_ns > 0 else min(0, -below_ns)

    def add(self, found: Range) -> None:
        """Take in a later range through which a line passes."""
        at_ns, low_ns, high_ns = found
        if high_ns < self.rising.at(at_ns):
            rate = self._lows.tangent(at_ns, high_ns)
            self.rising = Line(at_ns, high_ns, min(MAX_RATE, rate))
        if low_ns > self.falling.at(at_ns):
            rate = self._highs.tangent(at_ns, low_ns)
            self.falling = Line(at_ns, low_ns, max(-MAX_RATE, rate))
        self._lows.add(at_ns, low_ns)
        self._highs.add(at_ns, high_ns)
        self.samples += 1

    def find_corridor(self) -> None:
        """Find the widest corridor: where the hulls come closest, beginning where they did before.

        The distance of the hulls is convex in time, and least at a point of one of them.
        """
        lows, highs = self._lows, self._highs
        at_ns = max(self._narrow_ns, lows.at_ns[0], highs.at_ns[0])
        low, high = bisect_right(lows.at_ns, at_ns) - 1, bisect_right(highs.at_ns, at_ns) - 1
        at_ns = max(lows.at_ns[low], highs.at_ns[high])
        while True:
            # The edges that end at the instant, or contain it, and those that begin there.
            low_before = low - 1 if lows.at_ns[low] == at_ns else low
            high_before = high - 1 if highs.at_ns[high] == at_ns else high
            low_left, high_left = lows.rate(low_before), highs.rate(high_before)
            low_right, high_right = lows.rate(low), highs.rate(high)
            if low_right is not None and high_right is not None and high_right < low_right:
                at_ns = min(lows.at_ns[low + 1], highs.at_ns[high + 1])
                low += lows.at_ns[low + 1] == at_ns
                high += highs.at_ns[high + 1] == at_ns
            elif low_left is not None and high_left is not None and high_left > low_left:
                low, high = low_before, high_before
                at_ns = max(lows.at_ns[low], highs.at_ns[high])
            else:
                break
        self._narrow_ns = at_ns
        least = max(each for each in (self.falling.rate, high_left, low_right) if each is not None)
        most = min(each for each in (self.rising.rate, high_right, low_left) if each is not None)
        low_ns, high_ns, rate = _height(lows, low, at_ns), _height(highs, high, at_ns), (least + most) / 2
        if not self.falling.rate <= rate <= self.rising.rate:
            # The widest corridor is steeper than clocks are: the outermost lines that are not decide.
            at_ns = lows.at_ns[-1]
            low_ns, high_ns = self.falling.at(at_ns), self.rising.at(at_ns)
            rate = (self.falling.rate + self.rising.rate) / 2
        self.width_ns = high_ns - low_ns
        self.middle = Line(at_ns, (low_ns + high_ns) // 2, rate)


def _height(hull: Hull, index: int, at_ns: int) -> int:
    """Return a hull's offset at an instant, at a point of it or behind."""
    rate = hull.rate(index)
    behind_ns = at_ns - hull.at_ns[index]
    return hull.offsets_ns[index] + (0 if rate is None else round(rate * behind_ns))


class PeerClock:
    """Translates instants between the controller's clock and one peer's; all in nanoseconds."""

    __slots__ = (
        *("_error_ns", "_fit", "_growth", "_heard_ns", "_latest", "_next", "_offset_ns", "_window"),
        *("rate", "round_ns", "samples", "steps"),
    )

    def __init__(self, window: int = WINDOW_SAMPLES) -> None:
        self._window = window
        self._fit: Fit | None = None
        self._next: Fit | None = None
        """Begun half a window after ``_fit``, which it follows."""
        self._latest: deque[Range] = deque(maxlen=LATEST_SAMPLES)
        self._heard_ns = 0
        """Instant at which the last pong came."""
        self._offset_ns = 0
        """Offset at that instant, as the error is."""
        self._error_ns = 0
        self._growth = 0.0
        """Growth of the error, in seconds for a second."""
        self.rate = 0.0
        """Rate at which the peer's clock gains on the controller's, in seconds for a second."""
        self.samples = 0
        """The number of exchanges so far."""
        self.steps = 0
        """Number of times that the peer's clock has stepped."""
        self.round_ns = 0
        """The time that both ways take without queueing; 0 before the first exchange."""

    def add(self, ping_sent_ns: int, peer_received_ns: int, peer_sent_ns: int, pong_received_ns: int) -> int:
        """Take in one ping and its pong; return by how much the peer's clock has stepped since, 0 if not.

        Raises ValueError, and changes nothing, if they contradict each other: the peer answered before it
        received the ping, or held it for longer than the whole round trip took.
        """
        held_ns = peer_sent_ns - peer_received_ns
        round_ns = pong_received_ns - ping_sent_ns
        if not 0 <= held_ns <= round_ns:
            raise ValueError(f"a pong held for {held_ns} ns in a round of {round_ns} ns is impossible")
        at_ns = max(pong_received_ns, self._heard_ns + 1)
        # The upper end was measured at another instant, from which the offset may have moved.
        moved_ns = int(MAX_RATE * round_ns) + 1
        found = Range(at_ns, peer_sent_ns - at_ns, peer_received_ns - ping_sent_ns + moved_ns)
        stepped_ns = self._enter(found)
        self.samples += 1
        self._latest.append(found)
        self._settle(at_ns)
        return stepped_ns

    def offset_ns(self, instant_ns: int) -> int:
        """Return the peer's clock less the controller's at an instant of the latter; 0 before an exchange."""
        return self._offset_ns + int(self.rate * min(instant_ns - self._heard_ns, AHEAD_NS))

    def error_ns(self, instant_ns: int) -> int:
        """Return by how much `offset_ns` may be wrong if the clock neither steps nor changes its rate."""
        return self._error_ns + int(self._growth * max(0, min(instant_ns - self._heard_ns, AHEAD_NS)))

    def to_peer(self, instant_ns: int) -> int:
        """Return an instant of the controller's clock on the peer's."""
        return instant_ns + self.offset_ns(instant_ns)

    def to_controller(self, peer_ns: int) -> int:
        """Return an instant of the peer's clock on the controller's."""
        near_ns = peer_ns - self.offset_ns(self._heard_ns)
        return peer_ns - self.offset_ns(near_ns)

    def ahead_ns(self, now_ns: int, peer_ns: int) -> int:
        """Return how far the peer's clock has stepped ahead, at least, if a message has told now of an
        instant on it that would be yet to come; 0 if that instant is over.
        """
        since_ns = max(0, now_ns - self._heard_ns)
        ahead_ns = self.to_controller(peer_ns) - now_ns - self.error_ns(now_ns)
        return ahead_ns if ahead_ns > 2 * MAX_RATE * since_ns else 0

    def _enter(self, found: Range) -> int:
        """Fit the lines to a range; return by how much the clock has stepped."""
        fit, following = self._fit, self._next
        if fit is None:
            self._fit = Fit(found)
            return 0
        if fit.outside_ns(found):
            if following is None or following.outside_ns(found):
                return self._contradicted(fit if following is None else following, found)
            # The rate has changed since the older fit began, and the younger one knows the new rate.
            self._fit = fit = following
            self._next = following = None
        fit.add(found)
        if following is not None:
            if following.outside_ns(found):
                following = self._next = Fit(found)
            else:
                following.add(found)
            if self._next is following and following.samples >= self._window:
                self._fit, self._next = following, None
        elif fit.samples >= self._window // 2:
            self._next = Fit(found)
        return 0

    def _settle(self, at_ns: int) -> None:
        """Note what the fit says at the instant of its last range, and how that goes on."""
        fit = self._fit
        assert fit is not None, "it was made for the first range"
        fit.find_corridor()
        middle, rising, falling = fit.middle, fit.rising, fit.falling
        self._heard_ns = at_ns
        self._offset_ns = offset_ns = middle.at(at_ns)
        self._error_ns = max(rising.at(at_ns) - offset_ns, offset_ns - falling.at(at_ns), 0)
        self._growth = max(rising.rate - middle.rate, middle.rate - falling.rate)
        self.rate = middle.rate
        self.round_ns = max(0, fit.width_ns)

    def _contradicted(self, fit: Fit, found: Range) -> int:
        """Begin again with the latest ranges that agree; return by how much the clock has stepped."""
        outside_ns = fit.outside_ns(found)
        stepped_ns = 0
        if abs(outside_ns) > 2 * MAX_RATE * (found.at_ns - self._heard_ns):
            # No change of the rate since the last exchange explains as much.
            low_ns, high_ns = fit.falling.at(found.at_ns), fit.rising.at(found.at_ns)
            stepped_ns = (found.low_ns + found.high_ns - low_ns - high_ns) // 2 or outside_ns
            self.steps += 1
            self._latest.clear()
        self._fit, self._next = _latest_that_agree([*self._latest, found]), None
        return stepped_ns


def _latest_that_agree(ranges: list[Range]) -> Fit:
    """Return the fit of the longest end of these ranges through which a line passes."""
    # Backwards in time: a line through ranges is one in either direction.
    backwards = Fit(_mirrored(ranges[-1]))
    count = 1
    for each in reversed(ranges[:-1]):
        mirrored = _mirrored(each)
        if backwards.outside_ns(mirrored):
            break
        backwards.add(mirrored)
        count += 1
    agreeing = ranges[len(ranges) - count :]
    fit = Fit(agreeing[0])
    for each in agreeing[1:]:
        if fit.outside_ns(each):
            # Rounding causes this: one nanosecond decides, and forwards it falls the other way.
            fit = Fit(each)
        else:
            fit.add(each)
    return fit


def _mirrored(found: Range) -> Range:
    return Range(-found.at_ns, found.low_ns, found.high_ns)
