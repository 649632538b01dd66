"""What a client's connection over ZeroMQ may cost."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What one connection may cost."""

    message_bytes: int
    """Of a message that comes, all its frames."""
    handshake_ns: int
    message_idle_ns: int
    """How long nothing may come of a message under way."""
    message_ns: int
    """How long a message may take to come."""
    write_ns: int
    """How long a peer may read nothing of what waits for it."""
    backlog_bytes: int
    backlog_messages: int
