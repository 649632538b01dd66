"""Numbers for each second, in few bytes: of a worker, which has one in most, and of a model, which hasn't."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct

import msgspec


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
