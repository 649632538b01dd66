"""When a connection reads, and how much at once: large bodies by turns (`gateway.uploads`)."""

from __future__ import annotations

import asyncio
from typing import Final

from mainspring.gateway.uploads import LARGE_BYTES, SLICE_BYTES, Uploads

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
