"""Listens at one address, and keeps the connections that come, by their peers' names.

A peer that gives no name is given one for as long as its connection lasts. One that gives a name which a
connection has already takes its place: it is back before the end of its former connection was noticed.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.transport import addresses
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.channel import READABLE, WRITABLE, Channel, Ended, Message
from mainspring.transport.flush import flush_all
from mainspring.transport.framing import Violation, preamble
from mainspring.transport.hub import Hub

LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
GREETING_NS = 5_000_000_000
"""Time that a new connection has for its preamble."""
AGAIN_NS = 100_000_000
"""Time until connections are accepted again after the process ran out of descriptors."""
IDLE_NS = 1 << 61
ACCEPTS_AT_ONCE = 64


class Listener:
    """All connections to one address; see the module's docstring."""

    def __init__(self, hub: Hub, address: str, limits: Limits) -> None:
        """Listen; raise OSError if the address is taken, ValueError if it is none."""
        where, self._sockets = addresses.listen(address)
        self.address = str(where)
        """With the real port."""
        self.ended = 0
        """Connections that are over, whoever ended them."""
        self.on_violation: Callable[[str], object] = lambda _: None
        """Told what a peer has sent that breaks the framing; its connection is ended."""
        self._hub = hub
        self._limits = limits
        self._channels: dict[int, Channel] = {}
        self._peers: dict[bytes, Channel] = {}
        self._greeting: dict[int, int] = {}
        """When each connection without a preamble is given up, by descriptor."""
        self._ready: deque[Channel] = deque()
        self._unnamed = 0
        self._paused = False
        hub.add(self)
        for each in self._sockets:
            hub.own(each.fileno(), self)
            hub.epoll.register(each.fileno(), READABLE)

    def receive(self) -> tuple[bytes, Message] | None:
        """Return the next message and its sender's name, None if there is none; peers take turns."""
        ready = self._ready
        while ready:
            channel = ready.popleft()
            channel.queued = False
            try:
                known = channel.peer is not None
                message = channel.next()
                if not known and channel.peer is not None:
                    self._named(channel)
            except (Ended, Violation) as error:
                self._end(channel, error)
                continue
            if message is not None:
                if channel.more:
                    self._queue(channel)
                assert channel.peer is not None
                return channel.peer, message
        return None

    def send(self, peer: bytes, parts: Sequence[Any], volatile: bool = False) -> Delivery:
        """Send a message to a peer; ``volatile`` parts may change once this returns."""
        channel = self._peers.get(peer)
        return Delivery.GONE if channel is None else channel.send(parts, volatile)

    def backlog_bytes(self, peer: bytes) -> int:
        """Return how much waits to be sent to a peer; 0 if there is no connection to it."""
        channel = self._peers.get(peer)
        return 0 if channel is None else channel.backlog_bytes

    def disconnect(self, peer: bytes, why: str) -> None:
        """End the connection to a peer, if there is one; what waits to be sent to it is forgotten."""
        channel = self._peers.get(peer)
        if channel is not None:
            self._end(channel, Ended(why))

    def pending(self) -> bool:
        """Whether a connection may have a message that has been read already."""
        return bool(self._ready)

    def event(self, fd: int, mask: int) -> bool:
        """Accept, read or write."""
        channel = self._channels.get(fd)
        if channel is None:
            self._accept()
            return False
        if mask & WRITABLE:
            channel.flush()
        if mask & ~WRITABLE:
            channel.readable()
            self._queue(channel)
            return True
        return False

    def tick(self, now_ns: int) -> int:
        """Give up connections that say nothing; accept again if that was stopped."""
        if self._paused:
            self._paused = False
            for each in self._sockets:
                self._hub.epoll.register(each.fileno(), READABLE)
        for fd in [fd for fd, until_ns in self._greeting.items() if until_ns <= now_ns]:
            self._end(self._channels[fd], Ended("it did not say who it is"))
        return min(self._greeting.values(), default=IDLE_NS)

    def close(self, until_ns: int) -> None:
        """Close all connections; what waits to be sent has until then to leave."""
        for each in reversed(self._sockets):
            self._hub.disown(each.fileno())
            each.close()
        flush_all(list(self._channels.values()), until_ns)
        for channel in self._channels.values():
            self._hub.disown(channel.fd)
            channel.close()
        self._channels.clear()
        self._peers.clear()
        self._ready.clear()
        self._hub.drop(self)

    def _queue(self, channel: Channel) -> None:
        if not channel.queued:
            channel.queued = True
            self._ready.append(channel)

    def _accept(self) -> None:
        for listening in self._sockets:
            for _ in range(ACCEPTS_AT_ONCE):
                try:
                    sock, _ = listening.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                        self._pause(error)
                        return
                    continue
                self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        if len(self._channels) >= MAX_CONNECTIONS:
            LOG.warning("%s has %d connections, the most it takes", self.address, len(self._channels))
            sock.close()
            return
        addresses.prepare(sock)
        channel = Channel(sock, self._hub.epoll, self._limits)
        self._channels[channel.fd] = channel
        self._hub.own(channel.fd, self)
        self._hub.epoll.register(channel.fd, READABLE)
        self._greeting[channel.fd] = until_ns = time.monotonic_ns() + GREETING_NS
        self._hub.due(until_ns)
        channel.greet(preamble())

    def _pause(self, error: OSError) -> None:
        """Accept nobody for a moment: the kernel would go on saying that somebody is there."""
        LOG.warning("%s can't take another connection: %s", self.address, error.strerror)
        self._paused = True
        for each in self._sockets:
            self._hub.epoll.unregister(each.fileno())
        self._hub.due(time.monotonic_ns() + AGAIN_NS)

    def _named(self, channel: Channel) -> None:
        """A connection has said who it is."""
        del self._greeting[channel.fd]
        if not channel.peer:
            self._unnamed += 1
            channel.peer = b"\0" + self._unnamed.to_bytes(8, "big")
        elif channel.peer[0] == 0:
            raise Violation("its name begins with a zero")
        former = self._peers.get(channel.peer)
        if former is not None:
            self._end(former, Ended("its peer connected again"))
        self._peers[channel.peer] = channel

    def _end(self, channel: Channel, why: Exception) -> None:
        if isinstance(why, Violation):
            LOG.info("%s ends a connection: %s", self.address, why)
            self.on_violation(str(why))
        self.ended += 1
        self._greeting.pop(channel.fd, None)
        del self._channels[channel.fd]
        if channel.peer is not None and self._peers.get(channel.peer) is channel:
            del self._peers[channel.peer]
        if channel.queued:
            self._ready.remove(channel)
        self._hub.disown(channel.fd)
        channel.close()
