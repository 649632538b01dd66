"""Where large tensors are received: a slab that workers of this host read, or memory of the gateway's own.

What goes to a worker of this host is written there once, by the kernel as it comes from its client, and
read there by the worker. The slab is bounded; what it has no room for is received into ordinary memory and
goes to workers as frames, so nothing is refused for want of it. Whatever lies in it counts where other
memory does: as bodies that have not wholly come, and as inputs of requests in flight.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np

from mainspring.transport.shared_memory import OwnMemory
from mainspring.transport.slab import LEAST_SHARED_BYTES, Found, Slab

log = logging.getLogger("mainspring.gateway")

_LARGEST_PART: Final = 4
"""Nothing larger than this part of the slab is received there: a few clients could take all of it."""


class Memory:
    """See the module's docstring; used in the loop's thread only."""

    def __init__(self, size: int) -> None:
        """``size`` of the slab in bytes; 0 for none."""
        self._own: OwnMemory | None = None
        self._slab: Slab | None = None
        self._most = 0
        """Bytes of the largest place."""
        if not size:
            return
        try:
            self._own = OwnMemory("mainspring-inputs", size)
        except OSError as error:
            log.warning(
                "there is no slab of %d MiB (%s): inputs are copied twice more", size >> 20, error.strerror
            )
            return
        self._slab = Slab(self._own.bytes)
        self._most = self._slab.size // _LARGEST_PART

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
