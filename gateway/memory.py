"""Where large tensors are received: a slab that workers of this host read, or memory of the gateway's own.

What goes to a worker of this host is written there once, by the kernel as it comes from its client, and
read there by the worker. The slab is bounded; what it has no room for is received into ordinary memory and
goes to workers as frames, so nothing is refused for want of it. Whatever lies in it counts where other
memory does: as bodies that have not wholly come, and as inputs of requests in flight. Large bodies that are
coming take turns (`Uploads`), and answers have a budget (`Budget`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from mainspring.gateway.core.validation import Signature, header_rows, shapes_of
from mainspring.messages.peers import TensorHeader
from mainspring.transport.shared_memory import Bytes, OwnMemory, map_to_read
from mainspring.transport.slab import LEAST_SHARED_BYTES, Found, Slab


class Budget:
    """Bytes that may be held at one time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, count: int) -> bool:
        """Hold ``count`` more bytes; return False if that is too many, holding none of them."""
        if self.held_bytes + count > self.limit_bytes:
            return False
        self.held_bytes += count
        return True

    def give(self, count: int) -> None:
        """Hold ``count`` bytes less."""
        self.held_bytes -= count
        assert self.held_bytes >= 0, f"{self.held_bytes} bytes are held"


def no_room_for_answer(budget: Budget, more_bytes: int, whose: str = "of all clients") -> str:
    """Return why a request is refused whose answer would go beyond a budget."""
    return (
        f"answers {whose} that are asked for or not read yet hold {budget.held_bytes:,} bytes and may hold "
        f"{budget.limit_bytes:,}, and this one has some {more_bytes:,}; read them, or ask for less at once"
    )


def answer_bytes(signature: Signature, inputs: Sequence[TensorHeader], *, text: bool) -> int:
    """Return what the answer to a request with these inputs takes, about; at most, if it is made ``text``."""
    signature = shapes_of(signature, inputs)
    row_bytes = signature.text_row_bytes if text else signature.answer_row_bytes
    # A request whose inputs have different rows is refused.
    rows = header_rows(signature, inputs)
    return (1 if rows < 1 else min(rows, signature.most_rows)) * row_bytes


LARGE_BYTES: Final = 1 << 18
"""A body of which more is missing is read by turns."""
SLICE_BYTES: Final = 3 << 18
"""Most bytes that a turn reads: an image of 224 x 224 floats at once."""


class Upload(Protocol):
    """A connection with a large body."""

    def read_slice(self) -> None:
        """Read at most `SLICE_BYTES`, now or in the loop's next look at its socket."""

    def slice_over(self) -> None:
        """End the turn: what was not read by now has to wait for the next one."""


class Uploads:
    """The slab and the gateway's own memory; used in the loop's thread only."""

    def __init__(self) -> None:
        self._waiting: deque[Upload] = deque()
        self._reading: Upload | None = None
        self._again = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def wait(self, upload: Upload) -> None:
        """Give this one a turn; once for each call."""
        self._waiting.append(upload)
        self._schedule()

    def claim(self, upload: Upload) -> bool:
        """Give this one a turn at once, in the middle of the loop's, if nobody has one or waits for one."""
        if not self.free_for(upload):
            return False
        self._reading = upload
        self._schedule()
        return True

    def free_for(self, upload: Upload) -> bool:
        """Return whether nobody waits for a turn, and nobody else has one."""
        return not self._waiting and (self._reading is None or self._reading is upload)

    def forget(self, upload: Upload) -> None:
        """It is closed, or has all that it waited for."""
        if upload is self._reading:
            self._reading = None
        if upload in self._waiting:
            self._waiting.remove(upload)

    def _schedule(self) -> None:
        if not self._again:
            self._again = True
            if self._loop is None:
                # Asked once: to ask is a system call.
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._again = False
        over, self._reading = self._reading, None
        if over is not None:
            over.slice_over()
        if self._waiting:
            self._reading = self._waiting.popleft()
            # First, so that the next turn comes whatever becomes of this one.
            self._schedule()
            self._reading.read_slice()


_PROBE_BYTES: Final = 1 << 16
"""Most bytes that are read of a large body before its turn has come."""


class Reading:
    """One connection's; it is one of those that wait for `Uploads`."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._transport: asyncio.Transport | None = None
        self._wanted = True
        """True if the connection takes anything at present."""
        self._waiting = False
        """True while it waits for its turn."""
        self._has_turn = False
        self._offered_bytes = 0
        """Most bytes that the read under way takes."""

    @property
    def wanted(self) -> bool:
        """Return whether the connection takes anything at present, by turns or not."""
        return self._wanted

    def begin(self, transport: asyncio.Transport) -> None:
        """The connection is there, and reads."""
        self._transport = transport

    def end(self) -> None:
        """It is gone."""
        self._transport = None
        self._uploads.forget(self)

    def pause(self) -> None:
        """Read nothing until `resume`."""
        if self._wanted:
            self._wanted = False
            self._apply(was=not self._waiting)

    def resume(self) -> bool:
        """Read again; return whether it did not."""
        if self._wanted:
            return False
        self._wanted = True
        self._apply(was=False)
        return True

    def limited(self, buffer: memoryview, missing: int) -> memoryview:
        """Return what may be read to at once of a buffer, if so much is missing of a body."""
        if missing > LARGE_BYTES:
            self._has_turn = self._has_turn or self._uploads.claim(self)
            buffer = buffer[: SLICE_BYTES if self._has_turn else _PROBE_BYTES]
        self._offered_bytes = len(buffer)
        return buffer

    def took(self, count: int, missing: int) -> None:
        """Note that ``count`` bytes were read and ``missing`` bytes of a body are not: wait for the next turn
        if those are many.

        Nobody waits who is alone and has had no whole slice in this turn of the loop: to pause and to read
        again would be five system calls more, for nobody's sake.
        """
        had_slice, self._has_turn = self._has_turn and count >= self._offered_bytes, False
        if missing > LARGE_BYTES and not had_slice and self._uploads.free_for(self):
            return
        if missing > LARGE_BYTES and not self._waiting and self._transport is not None:
            self._waiting = True
            self._apply(was=self._wanted)
            self._uploads.wait(self)

    def read_slice(self) -> None:
        """It is this one's turn: the loop's next look at its socket reads a slice."""
        self._waiting, self._has_turn = False, True
        self._apply(was=False)

    def slice_over(self) -> None:
        """Nothing was there to be read."""
        self._has_turn = False

    def _apply(self, *, was: bool) -> None:
        reads = self._wanted and not self._waiting
        transport = self._transport
        if reads == was or transport is None or transport.is_closing():
            return
        if reads:
            transport.resume_reading()
        else:
            transport.pause_reading()


log = logging.getLogger("mainspring.gateway")

_LARGEST_PART: Final = 4
"""Nothing larger than this part of the slab is received there: a few clients could take all of it."""


class Lent(NamedTuple):
    """Memory of a client's that the gateway reads and hands on."""

    number: int
    """A number that no other lent memory has had."""
    mapped: Bytes
    descriptor: int
    address: int


class Lendings:
    """The memory that clients of this host have lent; workers may read it until it is over."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_array: dict[int, Lent] = {}
        """The memory of each, by the ``id`` of `Lent.mapped`, which lives as long as it is here."""
        self.numbers: set[int] = set()
        """The numbers of those that are not over."""

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
    """The turns of large bodies; used in the loop's thread only.

    Of all large bodies that are coming, one is read by one slice in each turn of the loop. A kernel that has
    megabytes for each of sixty connections hands them all over in one turn if it is asked to, and a client
    with a small request waits for all of it. So a connection whose body is large stops reading and waits
    here, and between two slices the loop serves everybody else.
    """

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
