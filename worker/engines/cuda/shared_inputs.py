"""Inputs that the device copies from memory which a gateway of this host writes, without a copy on the way.

The memory is pinned in pieces, one for each call of `advance`, because CUDA may let nothing else begin while
it pins, at the 1 to 2 GB/s that are reported. What lies in no pinned piece is copied to IO memory first, as
everything is where the driver does not pin memory that this process may only read.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable

from mainspring.worker.core.jobs import Reservation
from mainspring.worker.engine import Bytes
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.host_weights import may_be_pinned

LOG = logging.getLogger(__name__)

PIECE_BYTES = 16 << 20
"""Bytes of memory that are pinned in one call, which takes 8 to 16 ms."""

Begin = Callable[[Reservation, int, list[tuple[int, int]]], "int | None"]
"""Begins to copy host memory, given as addresses and sizes, to a slot from a byte on; returns the event
behind the copies, None if they could not be begun."""


class PinnedInputs:
    """`mainspring.worker.engine.SharedInputs` of a GPU."""

    def __init__(self, driver: Driver, memory: Bytes, begin: Begin) -> None:
        """``memory`` is mapped to read; nothing of it is pinned yet."""
        self.begun = 0
        """See `SharedInputs`, as for all that follows."""
        self.refused = ""
        """Reason why the driver pins no further piece; empty if it has refused none."""
        self._driver = driver
        self._memory = memory
        self._address = int(memory.ctypes.data)
        self._begin = begin
        self._pinned = 0
        """Bytes from the start on."""
        self._under_way: deque[tuple[int, int]] = deque()
        """Number of each copy under way, and the event behind it."""
        self._closing = False

    @property
    def advances(self) -> bool:
        """Return whether it is in use, or something of it is pinned still."""
        return not self._closing or self._pinned > 0

    def advance(self) -> bool:
        """Pin the next piece, or after `close` release the last one; return whether more is to be done."""
        if self._closing:
            if self._pinned:
                self._pinned = (self._pinned - 1) // PIECE_BYTES * PIECE_BYTES
                self._release(self._address + self._pinned)
            return self._pinned > 0
        size = min(PIECE_BYTES, len(self._memory) - self._pinned)
        if self.refused or not size:
            return False
        room = may_be_pinned()
        if size > room:
            self.refused = f"the host has room to pin {room >> 20} MiB more"
        else:
            try:
                self._driver.attach()
                self._driver.register_host(self._address + self._pinned, size, read_only=True)
            except Exception as error:
                self.refused = str(self._driver.explain(error))
        if self.refused:
            LOG.warning("%s", self.note)
            return False
        self._pinned += size
        return self._pinned < len(self._memory)

    @property
    def note(self) -> str:
        """Return a note for an operator where not all of it could be pinned; else an empty text."""
        if not self.refused or self._closing:
            return ""
        return (
            f"{len(self._memory) - self._pinned >> 20} MiB that a gateway shares can't be pinned "
            f"({self.refused}): inputs there are copied once more on their way to the GPU"
        )

    def covers(self, offset: int, size: int) -> bool:
        """See `SharedInputs`."""
        return not self._closing and offset + size <= self._pinned

    def send(self, io: Reservation, start: int, offset: int, size: int) -> None:
        """See `SharedInputs`."""
        parts = []
        while size:
            # No copy crosses a border of pieces: CUDA may take each for an allocation of its own.
            length = min(size, PIECE_BYTES - offset % PIECE_BYTES)
            parts.append((self._address + offset, length))
            offset += length
            size -= length
        self.begun += 1
        event = self._begin(io, start, parts)
        if event is not None:
            self._under_way.append((self.begun, event))

    def ended(self) -> int:
        """See `SharedInputs`. What is under way on a lost device stays so."""
        if not self._under_way:
            return self.begun
        with contextlib.suppress(Exception):
            self._driver.attach()
            while self._under_way and self._driver.happened(self._under_way[0][1]):
                self._under_way.popleft()
        return self._under_way[0][0] - 1 if self._under_way else self.begun

    def close(self) -> None:
        """See `SharedInputs`."""
        self._closing = True
        if self._under_way:
            with contextlib.suppress(Exception):
                self._driver.attach()
                self._driver.synchronize(self._under_way[-1][1])
            self._under_way.clear()

    def _release(self, address: int) -> None:
        try:
            self._driver.attach()
            self._driver.unregister_host(address)
        except Exception as error:
            LOG.warning("memory of a gateway stays pinned: %s", self._driver.explain(error))
