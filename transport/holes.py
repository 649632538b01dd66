"""The free parts of a stretch of memory: first fit, and holes that touch become one. Pure.

The first hole that is large enough is at the lowest offset, so that a stretch of which little is in use at
one time uses the same pages again and again, which are in memory and in the processor's caches.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Holes:
    """The free parts of memory from offset 0 to its size; it does not know what was taken by whom."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holes: list[tuple[int, int]] = [(0, size)] if size else []
        """Offset and size of each, by offset."""

    def take(self, size: int) -> int:
        """Take ``size`` bytes, one or more; return their offset, -1 if no hole is large enough."""
        for index, (offset, hole) in enumerate(self._holes):
            if hole < size:
                continue
            if hole == size:
                del self._holes[index]
            else:
                self._holes[index] = (offset + size, hole - size)
            return offset
        return -1

    def give(self, offset: int, size: int) -> None:
        """Give back what was taken there."""
        start, end = offset, offset + size
        index = bisect_left(self._holes, (start, 0))
        if index < len(self._holes) and self._holes[index][0] == end:
            end += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == start:
            start = self._holes.pop(index - 1)[0]
        insort(self._holes, (start, end - start))

    def validate(self, taken: list[tuple[int, int]], what: str) -> None:
        """Raise `AssertionError` unless holes and taken parts tile the memory, and no two holes touch.

        ``taken`` has offset and size of each part; ``what`` is the memory's name.
        """
        pieces = [(offset, size, "hole") for offset, size in self._holes]
        pieces = sorted(pieces + [(offset, size, "taken part") for offset, size in taken])
        cursor, before = 0, ""
        for offset, size, kind in pieces:
            assert offset == cursor, f"{what}: {kind} at {offset}, expected one at {cursor}: {pieces}"
            assert size > 0, f"{what}: empty {kind} at {offset}"
            assert not kind == before == "hole", f"{what}: two holes touch at {offset}"
            cursor, before = offset + size, kind
        assert cursor == self.size, f"{what}: pieces end at {cursor}, not at {self.size}"
