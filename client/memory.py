"""Memory of a client's that a gateway of its host reads: large inputs lie there and are not sent.

`ClientMemory` is a client's, whatever it is connected to: arrays that `Client.allocate` returns are in it.
`Lending` is a connection's. It offers the memory to the gateway with the first request that has use for it.
From the gateway's answer on a request names where its large inputs lie: those of arrays in the memory as
they are, others as copies there, which is one copy for the two that a socket takes, and no wake-up for each
piece that a socket's buffer holds. The gateway reads until the reply has come; then a copy's place is free.

Of requests with 602 KB, frames take 1 to 8 % longer than copies here, and 17 to 21 % longer than arrays of
`allocate` (`make bench-path`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mainspring.messages.clients import InferRequest, MemoryTaken, OfferMemory, Stretch
from mainspring.messages.codec import encode
from mainspring.transport.shared_memory import OwnMemory
from mainspring.transport.slab import LEAST_SHARED_BYTES, Slab

LOG = logging.getLogger(__name__)

MEMORY_BYTES: Final = 64 << 20
"""Memory of one client by default."""


class ClientMemory:
    """Memory that a client writes and its gateway may read; used by any thread, made when first needed."""

    def __init__(self, size: int = MEMORY_BYTES) -> None:
        """``size`` in bytes, of which pages are taken as they are first written; 0: there is none.

        Raises ValueError below 0.
        """
        if size < 0:
            raise ValueError(f"memory_bytes is {size}; it is a number of bytes, 0 for none")
        self._wanted = size
        self._lock = threading.Lock()
        self._own: OwnMemory | None = None
        self._slab: Slab | None = None
        self._address = 0

    @property
    def size(self) -> int:
        """Return its size in bytes; 0 if there is none."""
        return 0 if self._own is None else self._own.size

    @property
    def descriptor(self) -> int:
        """The memory's; -1 without any."""
        return -1 if self._own is None else self._own.descriptor

    def make(self) -> bool:
        """Make the memory unless that was done; return whether there is any."""
        with self._lock:
            return self._make()

    def take(self, size: int) -> memoryview | None:
        """Return a place of ``size`` bytes, one or more, taken while it is referred to; None: no room."""
        with self._lock:
            return self._slab.take(size) if self._make() and self._slab is not None else None

    def find(self, view: memoryview) -> int | None:
        """Return the offset of bytes in the memory; None for bytes anywhere else."""
        if self._own is None or not view.nbytes:
            return None
        address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        offset = address - self._address
        return offset if 0 <= offset <= self._own.size - view.nbytes else None

    def close(self) -> None:
        """Offer it to no further gateway; arrays in it stay."""
        with self._lock:
            self._wanted = 0
            if self._own is not None:
                self._own.close()
                self._own = self._slab = None

    def _make(self) -> bool:
        if self._own is not None or not self._wanted:
            return self._own is not None
        try:
            # No huge pages: a gateway can't be sure that its host has them when it reads.
            self._own = OwnMemory("mainspring-client", self._wanted, huge=False)
        except OSError as error:
            LOG.warning("no memory to share with a gateway (%s): inputs are sent", error.strerror)
            self._wanted = 0
            return False
        self._slab = Slab(self._own.bytes)
        self._address = self._own.bytes.__array_interface__["data"][0]
        return True


def allocate(memory: ClientMemory, shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of any content in a client's memory, or an ordinary one if that has no room."""
    kind = np.dtype(dtype)
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    size = kind.itemsize * int(np.prod(wanted, dtype=np.int64))
    place = None if kind.hasobject or size <= 0 else memory.take(size)
    return np.empty(wanted, kind) if place is None else np.frombuffer(place, kind).reshape(wanted)


class Lending:
    """The client's memory as one connection's gateway reads it; used by the connection's thread."""

    def __init__(self, memory: ClientMemory) -> None:
        self._memory = memory
        self._offered = self._taken = False
        self.copies: dict[int, list[memoryview]] = {}
        """Places that a request's inputs were copied to, by the key of a request without a reply."""

    @property
    def taken(self) -> bool:
        """Return whether the gateway reads the memory."""
        return self._taken

    def begin(self) -> None:
        """A new connection: its gateway knows nothing, and what the last one read is given up."""
        self._offered = self._taken = False
        self.copies.clear()

    def answered(self, message: MemoryTaken) -> None:
        """Note what the gateway says to the offer."""
        self._taken = self._offered and not message.refusal
        if message.refusal:
            LOG.info("inputs are sent, because the gateway can't read them here: %s", message.refusal)

    def replied(self, key: int) -> None:
        """Note that a request has its reply: nothing reads its inputs any more."""
        self.copies.pop(key, None)

    def place(
        self,
        request: InferRequest,
        views: Sequence[memoryview],
        room_bytes: int,
        send_descriptor: Callable[[bytes, int], bool],
    ) -> tuple[InferRequest, Sequence[memoryview]]:
        """Return a request that names where its large inputs lie, and the inputs that are left to be sent.

        ``room_bytes`` is what the gateway lets this client offer.
        """
        if not any(view.nbytes >= LEAST_SHARED_BYTES for view in views):
            return request, views
        if not self._taken:
            if not self._offered and room_bytes:
                self._offer(room_bytes, send_descriptor)
            return request, views
        places: list[Stretch | None] = []
        left: list[memoryview] = []
        copies: list[memoryview] = []
        for view in views:
            offset = self._memory.find(view) if view.nbytes >= LEAST_SHARED_BYTES else None
            if offset is None and view.nbytes >= LEAST_SHARED_BYTES:
                offset = self._copied(view, copies)
            if offset is None:
                places.append(None)
                left.append(view)
            else:
                places.append(Stretch(offset, view.nbytes))
        if copies:
            self.copies[request.key] = copies
        if len(left) == len(views):
            return request, views
        return msgspec.structs.replace(request, places=tuple(places)), left

    def _copied(self, view: memoryview, copies: list[memoryview]) -> int | None:
        place = self._memory.take(view.nbytes)
        if place is None:
            return None
        place[:] = view.cast("B")
        copies.append(place)
        return self._memory.find(place)

    def _offer(self, room_bytes: int, send_descriptor: Callable[[bytes, int], bool]) -> None:
        if not self._memory.make() or self._memory.size > room_bytes:
            self._offered = True
            return
        offer = encode(OfferMemory(self._memory.size))
        self._offered = send_descriptor(offer, self._memory.descriptor)
