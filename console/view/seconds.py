"""What became of requests in each second, and over the last 10, 60 and 300 of them."""

from __future__ import annotations

import math
from collections import deque
from typing import TypeVar

SECOND_NS = 1_000_000_000
WINDOWS = (10, 60, 300)
"""Lengths in whole seconds for which totals are kept."""
_UNIT_BITS = 13
"""The finest bucket is 8.2 us wide."""

Key = TypeVar("Key", int, str)


def bucket(duration_ns: int) -> int:
    """Return the number of a duration's bucket: those from 2 ms on are at most 1/128 of their value wide."""
    units = max(0, duration_ns) >> _UNIT_BITS
    shift = units.bit_length() - 8
    return units if shift <= 0 else (shift << 7) + (units >> shift)


def bucket_ms(number: int) -> float:
    """Return the middle of a bucket."""
    shift = max(0, (number >> 7) - 1)
    units = number - (shift << 7)
    return ((2 * units + 1) << shift << _UNIT_BITS) / 2e6


def percentile_ms(counts: dict[int, int], percent: float) -> float | None:
    """Return the middle of the bucket that holds a percentile (nearest rank); None if there is nothing."""
    total = sum(counts.values())
    if not total:
        return None
    rank = max(1, math.ceil(total * percent / 100))
    for number in sorted(counts):
        rank -= counts[number]
        if rank <= 0:
            return bucket_ms(number)
    return None


class Totals:
    """What happened within some time."""

    __slots__ = ("cold", "in_time", "late", "latencies", "offered", "rejected", "slos")

    def __init__(self) -> None:
        self.offered = 0
        """Requests that arrived."""
        self.in_time = 0
        """Requests whose EXEC ended by their deadline, best-effort ones included."""
        self.late = 0
        self.cold = 0
        """Of those two, requests whose model was resident nowhere when they arrived."""
        self.rejected: dict[str, int] = {}
        """By reason."""
        self.latencies: dict[int, int] = {}
        """Requests that ended in time or late, by `bucket` of their time from arrival to EXEC's end."""
        self.slos: dict[int, int] = {}
        """Requests that arrived with a deadline, by `bucket` of the time that they were given."""

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
        _add(self.latencies, other.latencies, sign)
        _add(self.slos, other.slos, sign)


def _add(counts: dict[Key, int], others: dict[Key, int], sign: int) -> None:
    for key, value in others.items():
        count = counts.get(key, 0) + sign * value
        if count:
            counts[key] = count
        else:
            counts.pop(key, None)


class Second:
    """A whole second that is over, as its series shows it."""

    __slots__ = ("p99_ms", "totals")

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.p99_ms = percentile_ms(totals.latencies, 99)


class Seconds:
    """The second that is going on, those that are over, and totals of the last ones."""

    def __init__(self, keep: int) -> None:
        """Keep so many seconds, at least as many as the longest window has."""
        self._keep = max(keep, WINDOWS[-1])
        self.now = Totals()
        """Of the second that is going on."""
        self.number = -1
        """Which second of the controller's clock that is; -1 before the first `reach`."""
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
