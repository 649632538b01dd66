"""Heaps of objects, for what is entered and taken out several times for each request.

Compiled, a comparison of two entries is one of plain numbers: `heapq` would compare tuples of objects.
"""

from __future__ import annotations

from mypy_extensions import i64


class Entry:
    """Something in a heap."""

    __slots__ = ()

    def precedes(self, other: Entry) -> bool:
        """Return whether it comes out before another one of its class."""
        raise NotImplementedError


class Keyed(Entry):
    """Something in a heap by a key and, among equal ones, a number."""

    __slots__ = ("key", "number")

    def __init__(self, key: int, number: int) -> None:
        self.key: i64 = key
        self.number: i64 = number

    def precedes(self, other: Entry) -> bool:
        """Return whether its key is lower, or its number if the keys are equal."""
        assert isinstance(other, Keyed)
        return self.key < other.key or (self.key == other.key and self.number < other.number)


class Weighted(Entry):
    """The same by a key that need not be whole."""

    __slots__ = ("key", "number")

    def __init__(self, key: float, number: int) -> None:
        self.key = key
        self.number: i64 = number

    def precedes(self, other: Entry) -> bool:
        """Return whether its key is lower, or its number if the keys are equal."""
        assert isinstance(other, Weighted)
        return self.key < other.key or (self.key == other.key and self.number < other.number)


def push(heap: list[Entry], entry: Entry) -> None:
    """Enter an entry."""
    heap.append(entry)
    place: i64 = len(heap) - 1
    while place > 0:
        parent: i64 = (place - 1) >> 1
        above = heap[parent]
        if not entry.precedes(above):
            break
        heap[place] = above
        place = parent
    heap[place] = entry


def pop(heap: list[Entry]) -> Entry:
    """Take the lowest entry out; raise IndexError if there is none."""
    last = heap.pop()
    if not heap:
        return last
    first = heap[0]
    _sink(heap, 0, last)
    return first


def order(heap: list[Entry]) -> None:
    """Make a heap of a list in any order."""
    place: i64 = (len(heap) >> 1) - 1
    while place >= 0:
        _sink(heap, place, heap[place])
        place -= 1


def _sink(heap: list[Entry], place: i64, entry: Entry) -> None:
    """Put an entry at a place, or below it in the place of lower ones, which move up."""
    size: i64 = len(heap)
    child: i64 = 2 * place + 1
    while child < size:
        below = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if other.precedes(below):
                below = other
                child += 1
        if not below.precedes(entry):
            break
        heap[place] = below
        place = child
        child = 2 * place + 1
    heap[place] = entry
