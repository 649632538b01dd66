"""Bounds of what clients send and ask for: large bodies take turns, and answers have a budget.

Of all large bodies that are coming, one is read by one slice in each turn of the loop.

A kernel that has megabytes for each of sixty connections hands them all over in one turn if it is asked to,
and a client with a small request waits for all of it. So a connection whose body is large stops reading and
waits here, and between two slices the loop serves everybody else.

`Budget` bounds the bytes that answers may hold.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from mainspring.gateway.core.validation import Signature, header_rows, shapes_of
from mainspring.messages.peers import TensorHeader


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
    return (1 if rows < 1 else min(rows, signature.max_rows)) * row_bytes


LARGE_BYTES: Final = 1 << 18
"""A body of which more is missing is read by turns."""
SLICE_BYTES: Final = 3 << 18
"""What a turn reads at most: an image of 224 x 224 floats at once."""


class Upload(Protocol):
    """A connection with a large body."""

    def read_slice(self) -> None:
        """Read at most `SLICE_BYTES`, now or in the loop's next look at its socket."""

    def slice_over(self) -> None:
        """What was not read by now has to wait for the next turn."""


class Uploads:
    """See the module's docstring; used in the loop's thread only."""

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
"""What is read of a large body before its turn has come."""


class Reading:
    """One connection's; it is one of those that wait for `Uploads`."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._transport: asyncio.Transport | None = None
        self._wanted = True
        """Whether the connection takes anything at present."""
        self._waiting = False
        """Whether it waits for its turn."""
        self._has_turn = False
        self._offered_bytes = 0
        """What the read under way takes at most."""

    @property
    def wanted(self) -> bool:
        """Whether the connection takes anything at present, by turns or not."""
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
        """So much was read, and so much is missing of a body: wait for the next turn if that is much.

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
