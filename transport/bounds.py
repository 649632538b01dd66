"""What a connection may cost, and what became of a message that was to be sent."""

from __future__ import annotations

from enum import Enum

import msgspec

from mainspring.transport.framing import MAX_TENSORS

PARTS_BYTES = 4
"""Longest parts that one message may add up to, where nothing else is said."""
PROGRESS_NS = 10_000_000_000
"""In this time an unfinished message has to grow by `PROGRESS_BYTES`, or its connection is ended."""
PROGRESS_BYTES = 1 << 16


class Delivery(Enum):
    """What became of a message that was to be sent."""

    SENT = "sent"
    """On its way, or kept until there is room."""
    GONE = "peer_gone"
    """There is no connection."""
    FULL = "peer_too_slow"
    """As much as is allowed waits for that peer already."""


class Limits(msgspec.Struct, frozen=True):
    """What one connection may cost."""

    part_bytes: int
    """Longest message proper, or tensor, that is received; beyond it the connection is ended."""
    backlog_bytes: int
    """Bytes that may wait to be sent; what is asked for beyond them is refused."""
    backlog_messages: int
    """The same in messages."""
    message_bytes: int = 0
    """All parts of one message together; 0 for those of `PARTS_BYTES` times ``part_bytes``."""
    tensors: int = MAX_TENSORS
    """Of one message."""

    @property
    def whole_bytes(self) -> int:
        """All parts of one message together; beyond it the connection is ended."""
        return self.message_bytes or PARTS_BYTES * self.part_bytes
