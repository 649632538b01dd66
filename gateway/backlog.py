"""How many bytes of large replies wait for one client to read them.

ZeroMQ bounds what waits for a peer by messages; of replies of 8 MB each the usual number would fill the
memory. Large frames are therefore sent with a tracker that says when ZeroMQ has let go of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

LARGE_BYTES = 1 << 18
"""Frames from this size are tracked; smaller ones are bounded well enough by their number, and a tracker
costs some 20 us."""


class Backlog:
    """Large frames on their way to one client, in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._bytes = 0

    def waiting_bytes(self) -> int:
        """Return the bytes of large frames that ZeroMQ still holds."""
        while self._waiting and self._waiting[0][0].done:
            self._bytes -= self._waiting.popleft()[1]
        return self._bytes

    def track(self, frames: Sequence[Any]) -> list[Any]:
        """Return the frames to send: the large ones tracked, over the same memory, and counted."""
        return [self._tracked(frame) if len(frame) >= LARGE_BYTES else frame for frame in frames]

    def _tracked(self, frame: Any) -> zmq.Frame:
        # Over the received frame's memory, which the new frame keeps alive: nothing is copied.
        tracked = zmq.Frame(frame.buffer, track=True, copy=False)
        tracker = tracked.tracker
        if tracker is not None:
            self._waiting.append((tracker, len(frame)))
            self._bytes += len(frame)
        return tracked
