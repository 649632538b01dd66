"""A connection that one end keeps up: connects, connects again when it is over, waits longer each time.

What is sent while there is no connection is either refused, or kept until there is one, within the bounds
of `Limits`. What a broken connection had not sent is not sent again: nobody knows what of it arrived.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.transport import addresses
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.channel import READABLE, WRITABLE, Channel, Ended, Message
from mainspring.transport.flush import flush_all
from mainspring.transport.framing import Violation, preamble, size_of
from mainspring.transport.hub import Hub
from mainspring.transport.lookup import Lookup

LOG = logging.getLogger(__name__)

FIRST_RETRY_NS = 50_000_000
LONGEST_RETRY_NS = 1_000_000_000
CONNECT_NS = 3_000_000_000
"""Time that an attempt has."""
IDLE_NS = 1 << 61


class Link:
    """A connection to one address; see the module's docstring."""

    def __init__(
        self, hub: Hub, address: str, limits: Limits, *, name: bytes = b"", keeps: bool = False
    ) -> None:
        """Begin to connect as ``name``; raise ValueError if the address or the name is none.

        ``keeps``: messages are kept while there is no connection.
        """
        self.address = addresses.parse(address)
        self.ended = 0
        """Connections that are over, whoever ended them."""
        self.on_violation: Callable[[str], object] = lambda _: None
        """Told what the other end has sent that breaks the framing; the connection is ended."""
        self._hub = hub
        self._limits = limits
        self._preamble = preamble(name)
        self._keeps = keeps
        self._kept: deque[Sequence[Any]] = deque()
        self._kept_bytes = 0
        self._lookup: Lookup | None = None
        self._attempt: socket.socket | None = None
        self._channel: Channel | None = None
        self._retry_ns = FIRST_RETRY_NS
        self._next_ns = 0
        """When the next attempt begins, or the one under way is given up; 0: at once. Only a lookup is not
        given up: the resolver has a time-out of its own, and another one would wait beside it."""
        hub.add(self)
        self.tick(time.monotonic_ns())

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._channel is not None

    @property
    def waits(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._kept) or (self._channel is not None and self._channel.waits)

    def send(self, parts: Sequence[Any]) -> Delivery:
        """Send a message, or keep it; the parts' memory stays in use until it has left."""
        if self._channel is not None:
            delivery = self._channel.send(parts)
            if delivery is not Delivery.GONE:
                return delivery
        if not self._keeps:
            return Delivery.GONE
        if self._kept_bytes > self._limits.backlog_bytes or len(self._kept) >= self._limits.backlog_messages:
            return Delivery.FULL
        self._kept.append(parts)
        self._kept_bytes += sum(map(size_of, parts))
        return Delivery.SENT

    def receive(self) -> Message | None:
        """Return the next message, None if there is none."""
        channel = self._channel
        if channel is None or not channel.more:
            return None
        try:
            known = channel.peer is not None
            message = channel.next()
        except (Ended, Violation) as error:
            self._end(error)
            return None
        if not known and channel.peer is not None:
            self._retry_ns = FIRST_RETRY_NS
        return message

    def pending(self) -> bool:
        """Whether a message may have been read already."""
        return self._channel is not None and self._channel.more

    def event(self, fd: int, mask: int) -> bool:
        """Go on connecting, read or write."""
        if self._lookup is not None:
            self._looked_up()
            return False
        if self._attempt is not None:
            self._settle()
            return False
        assert self._channel is not None, f"{fd} is not this link's"
        if mask & WRITABLE:
            self._channel.flush()
        if mask & ~WRITABLE:
            self._channel.readable()
            return True
        return False

    def tick(self, now_ns: int) -> int:
        """Begin an attempt, or give one up, when that is due."""
        if self.connected:
            return IDLE_NS
        if self._lookup is not None:
            return IDLE_NS
        if now_ns >= self._next_ns:
            if self._attempt is not None:
                self._fail("no answer")
            else:
                self._connect(now_ns)
        return IDLE_NS if self.connected or self._lookup is not None else self._next_ns

    def close(self, until_ns: int) -> None:
        """End the connection for good; what waits to be sent has until then to leave."""
        if self._lookup is not None:
            self._drop_lookup()
        if self._attempt is not None:
            self._drop_attempt()
        if self._channel is not None:
            flush_all([self._channel], until_ns)
            self._hub.disown(self._channel.fd)
            self._channel.close()
            self._channel = None
        self._kept.clear()
        self._hub.drop(self)

    def _connect(self, now_ns: int) -> None:
        self._next_ns = now_ns + CONNECT_NS
        by_name = addresses.connect_by_name(self.address)
        if by_name is not None:
            self._begin(by_name)
            return
        target = addresses.in_numbers(self.address)
        if target is not None:
            self._attempt_at(target)
            return
        self._lookup = Lookup(self.address)
        self._hub.own(self._lookup.fd, self)
        self._hub.epoll.register(self._lookup.fd, select.EPOLLIN)

    def _looked_up(self) -> None:
        """There is an answer about the host's name."""
        assert self._lookup is not None
        lookup = self._lookup
        self._drop_lookup()
        self._next_ns = time.monotonic_ns() + CONNECT_NS
        self._hub.due(self._next_ns)
        try:
            target = lookup.result()
        except OSError as error:
            self._fail(str(error.strerror))
            return
        self._attempt_at(target)

    def _attempt_at(self, target: addresses.Target) -> None:
        try:
            self._attempt = addresses.begin_to_connect(target)
        except OSError as error:
            self._fail(str(error.strerror))
            return
        self._hub.own(self._attempt.fileno(), self)
        self._hub.epoll.register(self._attempt.fileno(), select.EPOLLOUT)

    def _settle(self) -> None:
        """The attempt has come to an end."""
        assert self._attempt is not None
        code = self._attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code))
            return
        sock, self._attempt = self._attempt, None
        self._hub.epoll.unregister(sock.fileno())
        self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        """Connected: say who this is, and what was kept."""
        addresses.prepare(sock)
        self._channel = Channel(sock, self._hub.epoll, self._limits)
        self._hub.own(self._channel.fd, self)
        self._hub.epoll.register(self._channel.fd, READABLE)
        self._channel.greet(self._preamble)
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for parts in kept:
            self._channel.send(parts)

    def _fail(self, why: str) -> None:
        LOG.debug("can't reach %s: %s", self.address, why)
        if self._attempt is not None:
            self._drop_attempt()
        self._again()

    def _drop_attempt(self) -> None:
        assert self._attempt is not None
        self._hub.epoll.unregister(self._attempt.fileno())
        self._hub.disown(self._attempt.fileno())
        self._attempt.close()
        self._attempt = None

    def _drop_lookup(self) -> None:
        assert self._lookup is not None
        self._hub.epoll.unregister(self._lookup.fd)
        self._hub.disown(self._lookup.fd)
        self._lookup.close()
        self._lookup = None

    def _end(self, why: Exception) -> None:
        assert self._channel is not None
        if isinstance(why, Violation):
            LOG.warning("ended the connection to %s: %s", self.address, why)
            self.on_violation(str(why))
        self.ended += 1
        self._hub.disown(self._channel.fd)
        self._channel.close()
        self._channel = None
        self._again()

    def _again(self) -> None:
        self._next_ns = time.monotonic_ns() + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, LONGEST_RETRY_NS)
        self._hub.due(self._next_ns)
