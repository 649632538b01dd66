"""A slab: memory that its one owner writes and other processes of the host read, in places of any size.

A place is taken for as long as anything in this process refers to its bytes: a request that has no answer
yet, what waits to be sent, a lease of a reader in another process that its owner keeps for it. With the
last reference the place is free. So nobody has to say when a place is done with, and nobody can say so too
early.

A reader in another process knows a place by its offset, its size, and a *stamp*, which no other place ever
has. The slab begins with a table in which a place that is in use has its stamp. A reader that looks there
behind its copying knows whether what it copied was the place's until the end, even if the owner did not
wait for it because it took that reader for dead. (On processors that reorder loads that is certain only
because a reader calls many functions in between.)"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import partial
from typing import Any, Final

from mainspring.transport.holes import Holes
from mainspring.transport.shared_memory import Bytes

LEAST_SHARED_BYTES: Final = 64 << 10
"""A smaller tensor goes to the other process as a frame, which costs less (docs/measurements.md)."""
SLOTS: Final = 4096
"""Places that are in use at one time."""
_STAMP_BYTES: Final = 8
TABLE_BYTES: Final = SLOTS * _STAMP_BYTES
ALIGNMENT_BYTES: Final = 64
"""A place begins at a multiple of this: a cache line."""

Found = tuple[int, int, int]
"""The place of bytes in a slab: their offset, and the slot and the stamp of their place."""


class _Taken:
    """A place that is in use."""

    def __init__(self, offset: int, size: int, slot: int, stamp: int, array: int) -> None:
        self.offset = offset
        self.size = size
        """Size in bytes, as taken of the holes."""
        self.slot = slot
        self.stamp = stamp
        self.array = array
        """The ``id`` of the array of its bytes, which lives for as long as the place is in use."""
        self.end: Any = None
        """The weak reference that tells when it does no more."""


class Slab:
    """See the module's docstring; used by one thread, though any may drop the last reference to a place."""

    def __init__(self, memory: Bytes) -> None:
        """Use memory that nobody else writes to; it has the table, and room for something beside it."""
        self._memory = memory
        self._table = memory[:TABLE_BYTES].data.cast("Q")
        self._holes = Holes((len(memory) - TABLE_BYTES) // ALIGNMENT_BYTES * ALIGNMENT_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory.data))
        self._slots = list(range(SLOTS - 1, -1, -1))
        """Slots that are free, the next one last."""
        self._stamps = 0
        """The last one that was given out."""
        self._taken: dict[int, _Taken] = {}
        """The places in use, by `_Taken.array`."""
        self._ended: deque[int] = deque()
        """Arrays that have ended since the last look: another thread may have ended them."""

    @property
    def size(self) -> int:
        """Bytes of all places together, at most."""
        return self._holes.size

    def take(self, size: int) -> memoryview | None:
        """Return a place of ``size`` bytes, one or more, whose content is left from before; None: no room."""
        self._collect()
        if not self._slots:
            return None
        wanted = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offset = self._holes.take(wanted)
        if offset < 0:
            return None
        start = TABLE_BYTES + offset
        array = self._memory[start : start + size]
        key = id(array)
        self._stamps += 1
        taken = _Taken(offset, wanted, self._slots.pop(), self._stamps, key)
        taken.end = weakref.ref(array, partial(_note, self._ended, key))
        self._taken[key] = taken
        self._table[taken.slot] = taken.stamp
        return array.data

    def find(self, view: memoryview) -> Found | None:
        """Return where bytes lie that are one or more of a place's, uncopied; None for any others."""
        if self._ended:
            # An array that is not of the slab may have the id of one that was.
            self._collect()
        taken = self._taken.get(id(view.obj))
        if taken is None:
            return None
        offset = ctypes.addressof(ctypes.c_char.from_buffer(view)) - self._address
        return offset, taken.slot, taken.stamp

    def validate(self) -> None:
        """Raise `AssertionError` unless places and holes tile the memory, and the table says what is used."""
        self._collect()
        self._holes.validate([(each.offset, each.size) for each in self._taken.values()], "slab")
        stamps = {each.slot: each.stamp for each in self._taken.values()}
        assert len(stamps) == len(self._taken), f"two places in one slot: {sorted(stamps)}"
        for slot, stamp in enumerate(self._table):
            assert stamp == stamps.get(slot, 0), f"slot {slot} has stamp {stamp}, not {stamps.get(slot, 0)}"
        assert sorted([*self._slots, *stamps]) == list(range(SLOTS)), "slots were lost"

    @property
    def places(self) -> int:
        """Places in use."""
        self._collect()
        return len(self._taken)

    def _collect(self) -> None:
        """Free the places whose arrays have ended."""
        while self._ended:
            taken = self._taken.pop(self._ended.popleft())
            # First, so that a reader that has not noticed finds out whatever is written there.
            self._table[taken.slot] = 0
            self._slots.append(taken.slot)
            self._holes.give(taken.offset, taken.size)


def _note(ended: deque[int], key: int, _: object) -> None:
    ended.append(key)


class Reader:
    """A slab of another process, as this one reads it."""

    def __init__(self, memory: Bytes) -> None:
        """Read mapped memory, which begins with the table; raise ValueError if it is too small for one."""
        if len(memory) <= TABLE_BYTES:
            raise ValueError(f"a slab has more than {TABLE_BYTES:,} bytes, not {len(memory):,}")
        self._memory = memory
        self._table = memory[:TABLE_BYTES].data.cast("Q")

    def read(self, offset: int, size: int, slot: int) -> Bytes:
        """Return the bytes there, uncopied; raise ValueError if there are none."""
        if not (offset >= TABLE_BYTES and size > 0 and offset + size <= len(self._memory)):
            raise ValueError(
                f"{size:,} bytes at {offset:,} are not in the slab: its places are from {TABLE_BYTES:,} to "
                f"{len(self._memory):,}"
            )
        if not 0 <= slot < SLOTS:
            raise ValueError(f"there is no slot {slot}: a slab has {SLOTS:,}")
        return self._memory[offset : offset + size]

    def holds(self, slot: int, stamp: int) -> bool:
        """Return whether a place is still in use: what was read of it before was its content."""
        return 0 <= slot < SLOTS and self._table[slot] == stamp
