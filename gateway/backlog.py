"""How many bytes wait to be sent to one peer: a client that does not read, a worker that can't be reached.

ZeroMQ bounds what waits for a peer by messages; of messages of 8 MB each the usual number would fill the
memory. Now and then, after `LARGE_BYTES` at most, a frame is therefore sent with a tracker that says when
ZeroMQ has let go of it, and so of all that was sent before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

LARGE_BYTES = 1 << 18
"""Bytes that are sent without a tracker; one costs some 20 us."""

Parts = tuple[Sequence[bytes], Sequence[Any]]
"""Of a message: its small parts, then those that are sent uncopied."""


class Backlog:
    """What was sent to one peer, in order, and is on its way."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._bytes = 0
        self._untracked_bytes = 0

    def waiting_bytes(self) -> int:
        """Return the bytes that ZeroMQ still holds, to within `LARGE_BYTES`."""
        while self._waiting and self._waiting[0][0].done:
            self._bytes -= self._waiting.popleft()[1]
        return self._bytes

    def admit(self, message: bytes, frames: Sequence[Any], limit_bytes: int) -> Parts | None:
        """Count a message and return what to send of it; None if more than ``limit_bytes`` wait already."""
        untracked = self._untracked_bytes + len(message) + sum(map(len, frames))
        if untracked < LARGE_BYTES:
            self._untracked_bytes = untracked
            return (message,), frames
        if self.waiting_bytes() > limit_bytes:
            return None
        self._untracked_bytes = 0
        return (), self._tracked([message, *frames], untracked)

    def _tracked(self, parts: list[Any], size: int) -> list[Any]:
        """Replace the largest part by a tracked frame over its memory: nothing is copied."""
        largest = max(range(len(parts)), key=lambda index: len(parts[index]))
        part = parts[largest]
        frame = zmq.Frame(part.buffer if isinstance(part, zmq.Frame) else part, track=True, copy=False)
        if frame.tracker is not None:
            self._waiting.append((frame.tracker, size))
            self._bytes += size
        parts[largest] = frame
        return parts
