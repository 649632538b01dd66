"""What a connection may cost, and what became of a message that was to be sent."""

from __future__ import annotations

from enum import Enum

import msgspec


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
