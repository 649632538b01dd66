"""The bounds of what a view remembers, and its numbers: by second, over the last minutes, in few bytes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from struct import Struct

import msgspec

from mainspring.telemetry.percentiles import DurationHistogram

SECOND_NS = 1_000_000_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a view's memory; whichever is reached first holds."""

    keep_ns: int = 300 * SECOND_NS
    """Time for which what is over is remembered."""
    actions: int = 600_000
    """Ended actions, those of all executors together: five minutes of 2,000 a second, at 170 bytes each."""
    notable_requests: int = 60_000
    """Requests that were rejected or late."""
    other_requests: int = 60_000
    """Requests that ended in time or were cancelled."""
    requests_of_model: int = 16
    """Newest requests that have ended, for each model's page."""
    evictions: int = 1_000
    """Evictions of each worker."""
    sessions: int = 32
    """Sessions of workers that ended."""
    operations: int = 100
    """Commands of operators."""
    happenings: int = 200
    """Events of workers and of the controller."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a bound that leaves nothing."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")


class Ring:
    """One number for each of the last seconds; 0 where none was entered."""

    __slots__ = ("_newest", "_numbers")

    def __init__(self, seconds: int) -> None:
        """Remember the newest second that a number is entered for, and those before it."""
        self._numbers = array("q", bytes(8 * seconds))
        self._newest = -1

    def add(self, second: int, amount: int) -> None:
        """Add to the number of a second; one that is forgotten stays so."""
        numbers = self._numbers
        if second > self._newest:
            for passed in range(max(self._newest + 1, second - len(numbers) + 1), second + 1):
                numbers[passed % len(numbers)] = 0
            self._newest = second
        if second > self._newest - len(numbers):
            numbers[second % len(numbers)] += amount

    def __getitem__(self, second: int) -> int:
        """Return the number of a second."""
        length = len(self._numbers)
        return self._numbers[second % length] if self._newest - length < second <= self._newest else 0


class Point(msgspec.Struct, gc=False):
    """Outcomes of one model's requests in one second."""

    second: int
    offered: int = 0
    in_time: int = 0
    late: int = 0
    rejected: int = 0
    total_ns: int = 0
    """Sum of the latencies of those that were executed."""
    longest_ns: int = 0


_POINT = Struct("<7q")


class ModelSeconds:
    """The seconds in which something became of a model's requests."""

    __slots__ = ("_now", "_past")

    def __init__(self) -> None:
        self._past = bytearray()
        """`Point`s, packed, the oldest first."""
        self._now = Point(-1)

    def at(self, second: int, keep: int) -> Point:
        """Return what is counted in the second that is going on; forget those more than ``keep`` before."""
        now = self._now
        if now.second != second:
            if now.second >= 0:
                self._past += _POINT.pack(*msgspec.structs.astuple(now))
            self.forget(second - keep)
            now = self._now = Point(second)
        return now

    def forget(self, before: int) -> None:
        """Forget the seconds before one."""
        past, end = self._past, 0
        while end < len(past) and _POINT.unpack_from(past, end)[0] < before:
            end += _POINT.size
        if end:
            del past[:end]

    def points(self, first: int, end: int) -> Iterator[Point]:
        """Yield the seconds from ``first`` on, up to ``end`` and without it."""
        for values in _POINT.iter_unpack(self._past):
            if first <= values[0] < end:
                yield Point(*values)
        if first <= self._now.second < end:
            yield self._now


WINDOWS = (10, 60, 300)
"""Lengths in whole seconds for which totals are kept."""


class Totals:
    """Counts of what happened within some time."""

    __slots__ = ("cold", "in_time", "late", "latencies", "offered", "rejected", "slos", "turned_away")

    def __init__(self) -> None:
        self.offered = 0
        """Requests that arrived."""
        self.in_time = 0
        """Requests whose EXEC ended by their deadline, best-effort ones included."""
        self.late = 0
        self.cold = 0
        """Number of the requests in time and late whose model was resident nowhere when they arrived."""
        self.rejected: dict[str, int] = {}
        """Number of rejected requests by reason."""
        self.turned_away: dict[str, int] = {}
        """Number of requests that gateways refused themselves, by reason: they are not among those that
        arrived."""
        self.latencies = DurationHistogram()
        """Times from arrival to EXEC's end of requests that ended in time or late."""
        self.slos = DurationHistogram()
        """Times given to the requests that arrived with a deadline."""

    @property
    def rejections(self) -> int:
        """Requests that were rejected, for whatever reason."""
        return sum(self.rejected.values())

    def add(self, other: Totals, sign: int = 1) -> None:
        """Add what happened in another time, or take it off again with a ``sign`` of -1."""
        self.offered += sign * other.offered
        self.in_time += sign * other.in_time
        self.late += sign * other.late
        self.cold += sign * other.cold
        _add(self.rejected, other.rejected, sign)
        _add(self.turned_away, other.turned_away, sign)
        self.latencies.merge(other.latencies, sign)
        self.slos.merge(other.slos, sign)


def _add(totals: dict[str, int], counts: dict[str, int], sign: int) -> None:
    for reason, count in counts.items():
        total = totals.get(reason, 0) + sign * count
        if total:
            totals[reason] = total
        else:
            totals.pop(reason, None)


class Second:
    """A whole second that is over, as its series shows it."""

    __slots__ = ("p99_ms", "totals")

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.p99_ms = totals.latencies.percentile_ms(99)


class Seconds:
    """The second that is going on, those that are over, and totals of the last ones."""

    def __init__(self, keep: int) -> None:
        """Keep ``keep`` seconds, at least as many as the longest window has."""
        self._keep = max(keep, WINDOWS[-1])
        self.now = Totals()
        """Totals of the second that is going on."""
        self.number = -1
        """Number of that second on the controller's clock; -1 before the first `reach`."""
        self.past: deque[Second] = deque()
        """The seconds before it, the oldest first."""
        self.windows = {length: Totals() for length in WINDOWS}
        """Totals of the last whole seconds."""

    def reach(self, number: int) -> None:
        """Come to a second of the controller's clock; one that is over already changes nothing."""
        if self.number < 0:
            self.number = number
        if number - self.number > self._keep:
            self.__init__(self._keep)  # type: ignore[misc]
            self.number = number
        while self.number < number:
            self._close()

    def in_window(self, length: int) -> int:
        """Return how many whole seconds a window holds: fewer than its length at first."""
        return min(length, len(self.past))

    def _close(self) -> None:
        past, second = self.past, Second(self.now)
        past.append(second)
        for length, totals in self.windows.items():
            totals.add(second.totals)
            if len(past) > length:
                totals.add(past[-1 - length].totals, -1)
        if len(past) > self._keep:
            past.popleft()
        self.now = Totals()
        self.number += 1
