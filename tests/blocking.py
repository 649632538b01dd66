"""Conversations that wait: for tools and tests, which have no loop of their own.

`Server` and `Client` are a `Listener` and a `Link` with a hub each. A message is a list of parts; with a
server, the peer's ``ROLE/NAME`` goes before them, in both directions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.channel import Message
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener

LIMITS = Limits(part_bytes=1 << 30, backlog_bytes=1 << 30, backlog_messages=1 << 20)
POLL_NS = 10_000_000


class TimedOut(Exception):
    """Nothing came in time."""


class _Conversation:
    """What both have in common."""

    def __init__(self) -> None:
        self.closed = False
        self._hub = Hub()
        self._next: Message | None = None

    def _take(self) -> Message | None:
        raise NotImplementedError

    def _turn(self, timeout_ns: int) -> None:
        """Do what the sockets need, and look for a message."""
        self._hub.wait(max(0, timeout_ns))
        if self._next is None:
            self._next = self._take()

    def poll(self, timeout_ms: float = 0) -> bool:
        """Wait for a message; return whether there is one."""
        until_ns = time.monotonic_ns() + round(timeout_ms * 1e6)
        while self._next is None:
            left_ns = until_ns - time.monotonic_ns()
            self._turn(left_ns)
            if left_ns <= 0:
                break
        return self._next is not None

    def receive(self, timeout_ms: float = 10_000) -> Message:
        """Return the next message; raise `TimedOut` if none comes."""
        if not self.poll(timeout_ms):
            raise TimedOut(f"no message came within {timeout_ms:g} ms")
        message, self._next = self._next, None
        assert message is not None
        return message

    def close(self, linger_ms: float = 0) -> None:
        """Close; what waits to be sent has so long to leave."""
        if not self.closed:
            self.closed = True
            self._hub.close(round(linger_ms * 1e6))


class Server(_Conversation):
    """Listens; raises OSError if the address is taken."""

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:*",
        limits: Limits = LIMITS,
        *,
        role: str = "tool",
        name: bytes = b"",
        keys: Keys | None = None,
    ) -> None:
        super().__init__()
        self.listener = Listener(self._hub, address, limits, Pass(role, keys), name)
        self.address = self.listener.address

    def _take(self) -> Message | None:
        received = self.listener.receive()
        return None if received is None else [received[0], *received[1]]

    def send(self, message: Sequence[Any]) -> Delivery:
        """Send a message: whom to, then its parts."""
        self._turn(0)
        return self.listener.send(message[0], message[1:])


class Client(_Conversation):
    """Connects, and sends once it is connected."""

    def __init__(
        self,
        address: str,
        name: bytes = b"",
        limits: Limits = LIMITS,
        *,
        role: str = "tool",
        keys: Keys | None = None,
    ) -> None:
        super().__init__()
        shows = Pass(role, keys)
        self.link = Link(self._hub, address, limits, name=name, keeps=True, shows=shows)

    def _take(self) -> Message | None:
        return self.link.receive()

    def send(self, message: Sequence[Any]) -> Delivery:
        """Send a message, as far as the kernel takes it."""
        self._turn(0)
        return self.link.send(message)

    def flush(self, timeout_ms: float = 10_000) -> None:
        """Wait until the kernel has taken what was sent; raise `TimedOut` if it does not."""
        until_ns = time.monotonic_ns() + round(timeout_ms * 1e6)
        while self.link.waits:
            if time.monotonic_ns() > until_ns:
                raise TimedOut(f"what was sent did not leave within {timeout_ms:g} ms")
            self._turn(POLL_NS)
