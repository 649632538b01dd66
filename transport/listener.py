"""The listening end: accepts connections at one address, and keeps them by their peers' roles and names.

A connection counts once its peer has proved that it belongs here (`handshake`), in bounded time and memory.
The number of unproved connections is bounded; a further one ends the oldest. A peer without a name is given
one for as long as its connection lasts. A peer whose role and name another connection already has replaces
it: the process has connected again before the end of its former connection was noticed.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mainspring.transport import addresses
from mainspring.transport.bounds import AGAIN_NS, PROGRESS_NS, Delivery, Ended, Limits, Shortage
from mainspring.transport.certificate import Certificate
from mainspring.transport.channel import READABLE, WRITABLE, Channel, Message, flush_all
from mainspring.transport.greeting import TOOL, Greeting, Pass, trusted
from mainspring.transport.handshake import Accepting, Identity, Violation
from mainspring.transport.handshake_rate import HandshakeRate
from mainspring.transport.hub import Hub
from mainspring.transport.keys import LOOK_NS, REVOKED, Keys
from mainspring.transport.local import Local, inode_of, remove_local

LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
MAX_GREETINGS = 256
"""Unproved connections at the same time; a further one ends the oldest."""
GREETING_NS = 5_000_000_000
"""The time that a new connection has for the handshake."""
IDLE_NS = 1 << 61
ACCEPTS_AT_ONCE = 64
LOOK_AGAIN_NS = 1_000_000_000
"""Time from the end of `PROGRESS_NS` to the verdict: a suspended process has read its sockets by then."""


class Progress:
    """Messages that have begun to come: one that stops growing ends its connection."""

    def __init__(self) -> None:
        self._due: dict[Channel, tuple[int, bool]] = {}
        """Instant at which each connection is checked, and whether it is the second time."""

    def __bool__(self) -> bool:
        return bool(self._due)

    def unfinished(self, channel: Channel, now_ns: int) -> int:
        """Note that a message has begun to come; return when `overdue` is to be called."""
        if channel not in self._due:
            channel.grows()
            self._due[channel] = now_ns + PROGRESS_NS, False
        return self._due[channel][0]

    def finished(self, channel: Channel) -> None:
        """Note that the message is complete, or the connection over."""
        self._due.pop(channel, None)

    def overdue(self, now_ns: int) -> list[Channel]:
        """Return the connections whose message has stopped growing; `finished` must be called for each."""
        found = []
        for channel, (due_ns, again) in list(self._due.items()):
            if due_ns > now_ns:
                continue
            if not channel.drained or channel.grows():
                self._due[channel] = now_ns + PROGRESS_NS, False
            elif again:
                found.append(channel)
            else:
                self._due[channel] = now_ns + LOOK_AGAIN_NS, True
        return found

    @property
    def next_ns(self) -> int:
        """The instant of the next call of `overdue`."""
        return min((due_ns for due_ns, _ in self._due.values()), default=IDLE_NS)


class Listener:
    """All connections to one address; see the module's docstring."""

    def __init__(
        self,
        hub: Hub,
        address: str,
        limits: Limits | Mapping[str, Limits],
        shows: Pass = TOOL,
        name: bytes = b"",
        *,
        most: int | None = None,
    ) -> None:
        """Listen as ``name``; raise OSError if the address is taken, ValueError if it is malformed.

        ``limits``: for each role that may connect, or one for any role; ``most``: connections at one time,
        None for `MAX_CONNECTIONS`.
        """
        self._where, self._sockets = addresses.listen(address)
        self.address = str(self._where)
        """The address with the real port."""
        self.ended = 0
        """The number of connections that have ended, at either end."""
        self.on_violation: Callable[[str], object] = lambda _: None
        """Called with what breaks the framing, or why a peer is refused; the connection ends."""
        self.on_flood: Callable[[], object] = lambda: None
        """Called for each connection that is closed because its host begins too many handshakes of TLS."""
        self.on_end: Callable[[bytes], object] = lambda _: None
        """Called with the peer of a connection that has ended."""
        self._inode = inode_of(self._where) if isinstance(self._where, Local) else 0
        self._hub = hub
        self._most = most
        self._limits = limits
        self._identity, self._shows = Identity(shows.role, name), shows
        self._rate = None if shows.keys is None else HandshakeRate(time.monotonic_ns())
        self._channels: dict[int, Channel] = {}
        self._peers: dict[bytes, Channel] = {}
        self._greeting: dict[int, tuple[Greeting, int]] = {}
        """Unproved connections by descriptor, the oldest first, and when each is given up."""
        self._progress = Progress()
        self._ready: deque[Channel] = deque()
        self._unnamed = 0
        self._shortage = Shortage(self.address)
        self._paused = False
        hub.add(self)
        for each in self._sockets:
            hub.own(each.fileno(), self)
            hub.epoll.register(each.fileno(), READABLE)

    def receive(self) -> tuple[bytes, Message] | None:
        """Return the next message and its sender, ``ROLE/NAME``; None if there is none. Peers take turns."""
        ready = self._ready
        while ready:
            channel = ready.popleft()
            channel.queued = False
            try:
                message = channel.next()
            except (Ended, Violation) as error:
                self._end(channel, error)
                continue
            if message is not None:
                if self._progress:
                    self._progress.finished(channel)
                if channel.more:
                    self._queue(channel)
                return channel.peer, message
            if channel.unfinished:
                self._hub.due(self._progress.unfinished(channel, time.monotonic_ns()))
        return None

    def send(
        self, peer: bytes, parts: Sequence[Any], volatile: bool = False, *, beyond: bool = False
    ) -> Delivery:
        """Send a message to a peer, as `Channel.send` does."""
        channel = self._peers.get(peer)
        return Delivery.GONE if channel is None else channel.send(parts, volatile, beyond=beyond)

    def send_all(self, peer: bytes, messages: Sequence[bytes]) -> Delivery:
        """Send small messages without tensors to a peer by one system call; all of them share one fate."""
        channel = self._peers.get(peer)
        return Delivery.GONE if channel is None else channel.send_all(messages)

    def send_descriptor(self, peer: bytes, parts: Sequence[Any], descriptor: int) -> Delivery:
        """Send a message with a descriptor to a peer, as `Channel.send_descriptor` does."""
        channel = self._peers.get(peer)
        return Delivery.GONE if channel is None else channel.send_descriptor(parts, descriptor)

    def descriptor(self, peer: bytes) -> int | None:
        """Return the oldest descriptor that came from a peer; the caller is to close it."""
        channel = self._peers.get(peer)
        return None if channel is None else channel.descriptor()

    def host_of(self, peer: bytes) -> str:
        """Return the numeric address of a peer's host; empty if it is this one, or the peer is gone."""
        channel = self._peers.get(peer)
        return "" if channel is None else channel.host

    def certificate(self, peer: bytes) -> Certificate | None:
        """Return the certificate that a peer has shown; None for one without TLS, or without a connection."""
        channel = self._peers.get(peer)
        return None if channel is None else channel.certificate

    def backlog_bytes(self, peer: bytes) -> int:
        """Return the number of bytes that wait to be sent to a peer; 0 without a connection to it."""
        channel = self._peers.get(peer)
        return 0 if channel is None else channel.backlog_bytes

    def taken_bytes(self, peer: bytes) -> int:
        """Return the number of bytes that had to wait and that a peer has taken since; 0 without it."""
        channel = self._peers.get(peer)
        return 0 if channel is None else channel.taken_bytes

    def disconnect(self, peer: bytes, why: str) -> None:
        """End the connection to a peer, if there is one; what waits to be sent to the peer is discarded."""
        channel = self._peers.get(peer)
        if channel is not None:
            self._end(channel, Ended(why))

    def pending(self) -> bool:
        """Say whether a connection may have a message that has been read already."""
        return bool(self._ready)

    def event(self, fd: int, mask: int) -> bool:
        """Accept connections, continue a handshake, read or write."""
        channel = self._channels.get(fd)
        if channel is None:
            if fd not in self._greeting:
                self._accept()
                return False
            channel = self._greet(fd)
            if channel is None:
                return False
        if mask & WRITABLE:
            channel.flush()
        if mask & ~WRITABLE:
            channel.readable()
            self._queue(channel)
            return True
        return False

    def tick(self, now_ns: int) -> int:
        """End connections that are overdue; accept connections again after a pause."""
        if self._paused:
            self._paused = False
            for each in self._sockets:
                self._hub.epoll.register(each.fileno(), READABLE)
        for fd in [fd for fd, (_, until_ns) in self._greeting.items() if until_ns <= now_ns]:
            self._give_up(fd, Ended("it did not say who it is"))
        for channel in self._progress.overdue(now_ns):
            self._end(channel, Violation("a message of it stopped halfway"))
        first = next(iter(self._greeting.values()), None)
        looks_ns = IDLE_NS if self._shows.keys is None else self._look(self._shows.keys, now_ns)
        return min(IDLE_NS if first is None else first[1], self._progress.next_ns, looks_ns)

    def _look(self, keys: Keys, now_ns: int) -> int:
        """End connections whose certificates have been revoked meanwhile; return when to look again."""
        if keys.look(now_ns):
            for channel in list(self._channels.values()):
                if channel.certificate is not None and keys.revokes(channel.certificate):
                    self._end(channel, Violation(REVOKED))
        return now_ns + LOOK_NS

    def close(self, until_ns: int) -> None:
        """Close all connections; what waits to be sent may leave until then."""
        for each in reversed(self._sockets):
            self._hub.disown(each.fileno())
            each.close()
        if isinstance(self._where, Local):
            remove_local(self._where, self._inode)
        for fd in list(self._greeting):
            self._give_up(fd, Ended("the listener stops"))
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
                    sock, source = listening.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if self._shortage.caused(error):
                        self._pause(error)
                        return
                    continue
                if self._allowed(source):
                    self._admit(sock)
                else:
                    sock.close()
                    self.on_flood()

    def _allowed(self, source: object) -> bool:
        """Return whether a connection from an address may begin its handshake."""
        if self._rate is None or not isinstance(source, tuple):
            return True
        return self._rate.allows(time.monotonic_ns(), source[0])

    def _admit(self, sock: socket.socket) -> None:
        if len(self._channels) >= (MAX_CONNECTIONS if self._most is None else self._most):
            LOG.warning("%s has %d connections, the most it takes", self.address, len(self._channels))
            sock.close()
            return
        if len(self._greeting) >= MAX_GREETINGS:
            self._give_up(next(iter(self._greeting)), Ended("others come, and it has not said who it is"))
        addresses.prepare(sock)
        accepts = None if isinstance(self._limits, Limits) else self._limits
        handshake = Accepting(self._identity, trusted(sock), accepts)
        until_ns = time.monotonic_ns() + GREETING_NS
        self._greeting[sock.fileno()] = Greeting(self._shows.over(sock, True), handshake), until_ns
        self._hub.own(sock.fileno(), self)
        self._hub.epoll.register(sock.fileno(), READABLE)
        self._hub.due(until_ns)

    def _greet(self, fd: int) -> Channel | None:
        """Continue a handshake; return the connection once it is complete."""
        greeting, _ = self._greeting[fd]
        try:
            if not greeting.advance():
                return None
            peer = self._peer(greeting.handshake.peer)
        except (Ended, Violation) as error:
            self._give_up(fd, error)
            return None
        del self._greeting[fd]
        limits = self._limits
        if not isinstance(limits, Limits):
            limits = limits[greeting.handshake.peer.role]
        channel = self._channels[fd] = Channel(greeting.sock, self._hub.epoll, limits, peer)
        former = self._peers.get(peer)
        if former is not None:
            self._end(former, Ended("its peer connected again"))
        self._peers[peer] = channel
        return channel

    def _peer(self, who: Identity) -> bytes:
        """Return a peer's name in this listener: ``ROLE/NAME``."""
        name = who.name
        if not name:
            self._unnamed += 1
            name = b"\0" + self._unnamed.to_bytes(8, "big")
        elif name[0] == 0:
            raise Violation("its name begins with a zero")
        return who.role.encode() + b"/" + name

    def _give_up(self, fd: int, why: Exception) -> None:
        """End an unproved connection."""
        greeting, _ = self._greeting.pop(fd)
        if isinstance(why, Violation):
            LOG.info("%s ends a new connection: %s", self.address, why)
            self.on_violation(str(why))
        self._hub.epoll.unregister(fd)
        self._hub.disown(fd)
        greeting.sock.close()

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a moment; otherwise the kernel would report waiting connections without end."""
        self._shortage.say(LOG, error, time.monotonic_ns())
        self._paused = True
        for each in self._sockets:
            self._hub.epoll.unregister(each.fileno())
        self._hub.due(time.monotonic_ns() + AGAIN_NS)

    def _end(self, channel: Channel, why: Exception) -> None:
        if isinstance(why, Violation):
            LOG.info("%s ends a connection: %s", self.address, why)
            self.on_violation(str(why))
        self.ended += 1
        self._progress.finished(channel)
        del self._channels[channel.fd]
        if self._peers.get(channel.peer) is channel:
            del self._peers[channel.peer]
        if channel.queued:
            self._ready.remove(channel)
        self._hub.disown(channel.fd)
        channel.close()
        self.on_end(channel.peer)
