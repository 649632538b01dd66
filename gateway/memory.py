"""Where large tensors are received: a slab that workers of this host read, or memory of the gateway's own.

What goes to a worker of this host is written there once, by the kernel as it comes from its client, and
read there by the worker. The slab is bounded; what it has no room for is received into ordinary memory and
goes to workers as frames, so nothing is refused for want of it. Whatever lies in it counts where other
memory does: as bodies that have not wholly come, and as inputs of requests in flight.
"""

from __future__ import annotations

import itertools
import logging
import os
from typing import Any, Final, NamedTuple

import numpy as np

from mainspring.transport.shared_memory import Bytes, OwnMemory, map_to_read
from mainspring.transport.slab import LEAST_SHARED_BYTES, Found, Slab

log = logging.getLogger("mainspring.gateway")

_LARGEST_PART: Final = 4
"""Nothing larger than this part of the slab is received there: a few clients could take all of it."""


class Lent(NamedTuple):
    """Memory of a client's that the gateway reads and hands on."""

    number: int
    """Which no other has had."""
    mapped: Bytes
    descriptor: int
    address: int


class Lendings:
    """What clients of this host have lent; workers may read it until it is over."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_array: dict[int, Lent] = {}
        """By the ``id`` of `Lent.mapped`, which lives as long as it is here."""
        self.numbers: set[int] = set()
        """Of those that are not over."""

    def begin(self, descriptor: int, size: int) -> Lent:
        """Map memory; the descriptor is this one's now. Raises `Unusable`, and OSError."""
        try:
            # One of the two is closed behind the mapping, the other is handed on.
            mapped = map_to_read(os.dup(descriptor), size, huge=False)
        except BaseException:
            os.close(descriptor)
            raise
        array: Any = mapped
        address: int = array.__array_interface__["data"][0]
        lent = self._by_array[id(mapped)] = Lent(next(self._numbers), mapped, descriptor, address)
        self.numbers.add(lent.number)
        return lent

    def find(self, view: memoryview) -> tuple[Lent, int] | None:
        """Return whose memory bytes lie in that `Lent.mapped` was sliced for, and their offset, if any."""
        lent = self._by_array.get(id(getattr(view.obj, "base", None)))
        if lent is None:
            return None
        address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        return lent, address - lent.address

    def end(self, lent: Lent) -> None:
        """Hand it on no more; it stays mapped while something refers to its bytes."""
        del self._by_array[id(lent.mapped)]
        self.numbers.discard(lent.number)
        os.close(lent.descriptor)


class Memory:
    """See the module's docstring; used in the loop's thread only."""

    def __init__(self, size: int) -> None:
        """``size`` of the slab in bytes; 0 for none."""
        self.lendings = Lendings()
        self._own: OwnMemory | None = None
        self._slab: Slab | None = None
        self._most = 0
        """Bytes of the largest place."""
        if size:
            self._make(size)

    def _make(self, size: int) -> None:
        try:
            own = OwnMemory("mainspring-inputs", size)
        except OSError as error:
            log.warning(
                "there is no slab of %d MiB (%s): inputs are copied twice more", size >> 20, error.strerror
            )
            return
        self._own = own
        self._slab = Slab(own.bytes)
        self._most = self._slab.size // _LARGEST_PART

    def renew(self) -> None:
        """Have a new slab; the former one's memory is the system's again once nothing refers to its bytes.

        Its pages can't be given back by themselves: the seal that keeps others from writing forbids it. Huge
        pages are the host's, which keeps them for it.
        """
        if self._own is not None and not self._own.huge:
            size = self._own.size
            self.close()
            self._slab, self._most = None, 0
            self._make(size)

    @property
    def descriptor(self) -> int:
        """The slab's; -1 without one."""
        return -1 if self._own is None else self._own.descriptor

    @property
    def size(self) -> int:
        """Bytes of the slab's memory; 0 without one."""
        return 0 if self._own is None else self._own.size

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes to receive into; raise MemoryError if there are not enough."""
        place = self.share(size)
        # Not a bytearray, which would be filled with zeros first.
        return np.empty(size, np.uint8).data if place is None else place

    def copy(self, frame: Any) -> memoryview:
        """Return a copy of a tensor's bytes; raise MemoryError if there are not enough for it."""
        place = self.take(len(frame))
        place[:] = frame
        return place

    def share(self, size: int) -> memoryview | None:
        """Return a place in the slab; None if it has no room, or if the bytes are too few to be there."""
        if self._slab is None or not LEAST_SHARED_BYTES <= size <= self._most:
            return None
        return self._slab.take(size)

    def find(self, view: memoryview) -> Found | None:
        """Return where bytes lie in the slab, one or more; None for any others."""
        return None if self._slab is None else self._slab.find(view)

    def close(self) -> None:
        """Give the slab to no further worker."""
        if self._own is not None:
            self._own.close()
            self._own = None
