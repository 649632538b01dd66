"""How many bytes of outputs wait for each gateway to read them.

ZeroMQ bounds what waits for a peer by messages; as many outputs of 8 MB each would fill the memory. Every so
many bytes a frame is therefore sent with a tracker, which tells when ZeroMQ has let go of it, and so of all
that was sent to the same peer before. A tracker costs some 20 us, so not every frame has one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import zmq

MARK_BYTES = 1 << 18
"""Bytes after which a frame is tracked again."""
PEERS_REMEMBERED = 1024
"""Gateways whose bytes are counted; beyond it the one that was longest without an output is forgotten."""


class _Backlog:
    """Outputs on their way to one gateway, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[zmq.MessageTracker, int]] = deque()
        """Tracked frames, each with the bytes that were sent since the one before."""
        self.waiting_bytes = 0
        self.unmarked_bytes = 0

    def settle(self) -> None:
        """Take off what ZeroMQ has let go of."""
        while self.waiting and self.waiting[0][0].done:
            self.waiting_bytes -= self.waiting.popleft()[1]


class Backlogs:
    """Counts for every gateway; ``limit_bytes`` bounds what may wait for one, give or take `MARK_BYTES`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._peers: OrderedDict[bytes, _Backlog] = OrderedDict()

    def full(self, peer: bytes) -> bool:
        """Say whether as much waits for a gateway as may."""
        backlog = self._peers.get(peer)
        if backlog is None:
            return False
        backlog.settle()
        return backlog.waiting_bytes > self._limit_bytes

    def add(self, peer: bytes, frames: Sequence[memoryview]) -> Sequence[Any]:
        """Count frames that are about to be sent; return them, the last one tracked if that is due."""
        backlog = self._peers.setdefault(peer, _Backlog())
        self._peers.move_to_end(peer)
        if len(self._peers) > PEERS_REMEMBERED:
            self._peers.popitem(last=False)
        backlog.unmarked_bytes += sum(frame.nbytes for frame in frames)
        if backlog.unmarked_bytes < MARK_BYTES or not frames:
            return frames
        last = frames[-1]
        # A small frame is a view of IO memory, which is used again as soon as it is sent.
        kept = last if last.nbytes >= zmq.COPY_THRESHOLD else bytes(last)
        tracked = zmq.Frame(kept, track=True, copy=False)
        assert tracked.tracker is not None
        backlog.waiting.append((tracked.tracker, backlog.unmarked_bytes))
        backlog.waiting_bytes += backlog.unmarked_bytes
        backlog.unmarked_bytes = 0
        return [*frames[:-1], tracked]

    def forget(self, peer: bytes) -> None:
        """Forget a gateway that is gone."""
        self._peers.pop(peer, None)
