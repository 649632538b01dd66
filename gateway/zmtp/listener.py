"""Listens for ZeroMQ clients and keeps their connections; those that have something take turns.

A connection is known by a name of its own that none had before: the identity that a client gives its socket
is not used, so nobody can take the place of another by it.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns
from typing import Any, Final, Protocol

from mainspring.gateway.bounds import Budget
from mainspring.gateway.memory import Memory
from mainspring.gateway.uploads import Upload
from mainspring.gateway.zmtp.connection import READ_BYTES, Secured, ZmtpConnection
from mainspring.gateway.zmtp.limits import Limits
from mainspring.gateway.zmtp.receiver import Message, Opened, Ping
from mainspring.gateway.zmtp.wire import Violation
from mainspring.transport import addresses
from mainspring.transport.bounds import AGAIN_NS, Delivery, Ended, Shortage
from mainspring.transport.channel import READABLE, WRITABLE, flush_all
from mainspring.transport.handshake_rate import HandshakeRate
from mainspring.transport.hub import Hub

log = logging.getLogger("mainspring.gateway")

_ACCEPTS_AT_ONCE: Final = 64
_SWEEP_NS: Final = 250_000_000
"""Between two looks at what takes too long."""
_NEVER_NS: Final = 1 << 61
_STEPS: Final = 16
"""Connections that are looked at in search of one message."""
_IDLE_SEARCH: Final = 64
_EVICTED_IDLE_NS: Final = 1_000_000_000


class Owner(Protocol):
    """What a listener needs of the process that its clients talk to."""

    def gone(self, name: bytes) -> None:
        """A connection is over."""

    def violated(self, why: str) -> Sequence[bytes]:
        """A peer broke the protocol: return the message to send it."""

    def busy(self, name: bytes) -> bool:
        """Whether a connection waits for answers."""

    def large_message(self, name: bytes, message: Message) -> None:
        """A message has come whose frames were read by turns."""


class Turns(Protocol):
    """Lets connections with large frames read by turns."""

    def wait(self, upload: Upload) -> None:
        """Call `Upload.read_slice` when it is this one's turn."""


class ZmtpListener:
    """All connections to one address; see the module's docstring."""

    def __init__(
        self,
        hub: Hub,
        address: str,
        limits: Limits,
        owner: Owner,
        *,
        uploads: Turns,
        most: int,
        budget: Budget,
        backlog_bytes: int,
        memory: Memory | None = None,
        secured: Callable[[socket.socket], Secured] | None = None,
    ) -> None:
        """Listen; raise OSError if the address is taken, ValueError if it is none.

        ``most`` connections are taken at one time; ``budget`` counts what is kept of messages that have not
        wholly come, of all connections; ``backlog_bytes`` bounds what waits to be read by all of them;
        ``memory`` is where large frames are received; ``secured`` returns what to speak over in the place of
        a socket, where clients are to encrypt.
        """
        self._memory, self._secured = memory, secured
        self._rate = None if secured is None else HandshakeRate(monotonic_ns())
        self.on_flood: Callable[[], object] = lambda: None
        """Called for each connection that is closed because its host begins too many handshakes of CURVE."""
        self._listening, self.address = _listen(address)
        self._shortage = Shortage(self.address)
        self._hub = hub
        self._limits = limits
        self._owner = owner
        self._uploads = uploads
        self._most = most
        self._budget = budget
        self._backlog_limit = backlog_bytes
        self._backlog_bytes = 0
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._names = itertools.count(1)
        self._connections: dict[bytes, ZmtpConnection] = {}
        """The longest silent first."""
        self._strangers: dict[bytes, ZmtpConnection] = {}
        """Those without a session; the oldest first."""
        self._by_fd: dict[int, ZmtpConnection] = {}
        self._ready: deque[ZmtpConnection] = deque()
        self._timed: dict[ZmtpConnection, None] = {}
        """Those with something that may take too long."""
        self._paused = False
        hub.add(self)
        hub.own(self._listening.fileno(), self)
        hub.epoll.register(self._listening.fileno(), READABLE)

    # --- the front end's side ---

    def receive(self) -> tuple[bytes, Message] | None:
        """Return the next message and its sender's name, None if there is none so far; clients take turns."""
        for _ in range(min(_STEPS, len(self._ready))):
            connection = self._ready.popleft()
            connection.queued = False
            message = self._step(connection)
            if message is not None:
                return connection.name, message
        return None

    def send(self, name: bytes, parts: Sequence[Any], *, beyond: bool = False) -> Delivery:
        """Send a message; ``beyond``: even if more than is allowed waits for that client already."""
        connection = self._connections.get(name)
        if connection is None:
            return Delivery.GONE
        before = connection.backlog_bytes
        delivery = connection.send(parts, beyond=beyond)
        if before or connection.backlog_bytes:
            self._backlog_changed(connection, before)
        return delivery

    @property
    def names(self) -> Iterable[bytes]:
        """The connections, the longest silent first."""
        return self._connections.keys()

    def descriptor(self, name: bytes) -> int | None:  # noqa: ARG002
        """Return None: no descriptors come along over TCP."""
        return None

    def welcome(self, name: bytes, known: bool) -> None:
        """Say whether a client has a session, and so may send messages of any size."""
        connection = self._connections.get(name)
        if connection is not None:
            connection.welcome(known)
            if known:
                self._strangers.pop(name, None)
            else:
                self._strangers[name] = connection
            self._watch(connection)

    # --- the hub's side ---

    def pending(self) -> bool:
        """Whether a connection may have a message."""
        return bool(self._ready)

    def event(self, fd: int, mask: int) -> bool:
        """Accept or write, or take note that something is there to read: `pending` says so."""
        connection = self._by_fd.get(fd)
        if connection is None:
            if fd == self._listening.fileno():
                self._accept()
            return False
        if mask & WRITABLE:
            before = connection.backlog_bytes
            connection.flush()
            self._backlog_changed(connection, before)
        if mask & ~WRITABLE and not connection.uploading and fd in self._by_fd:
            connection.readable()
            self._go_on(connection)
        return False

    def tick(self, now_ns: int) -> int:
        """Give up what takes too long; accept again if that was stopped."""
        if self._paused:
            self._paused = False
            self._hub.epoll.register(self._listening.fileno(), READABLE)
        for connection in list(self._timed):
            if (why := connection.overdue(now_ns)) is not None:
                self._end(connection, why)
            elif not connection.timed:
                del self._timed[connection]
        return now_ns + _SWEEP_NS if self._timed else _NEVER_NS

    def close(self, until_ns: int) -> None:
        """Close all connections; what waits to be sent has until then to leave."""
        self._hub.disown(self._listening.fileno())
        self._listening.close()
        flush_all(list(self._connections.values()), until_ns)
        for connection in list(self._connections.values()):
            self._forget(connection)
        self._hub.drop(self)

    # --- connections ---

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, source = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if self._shortage.caused(error):
                    self._pause(error)
                    return
                continue
            if len(self._connections) >= self._most and not self._make_room():
                sock.close()
                continue
            if self._rate is not None and not self._rate.allows(monotonic_ns(), source[0]):
                sock.close()
                self.on_flood()
                continue
            addresses.prepare(sock)
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        name = next(self._names).to_bytes(8)
        secured = None if self._secured is None else self._secured(sock)
        connection = ZmtpConnection(name, sock, self._limits, self._budget, self._memory, secured)
        self._connections[connection.name] = self._strangers[connection.name] = connection
        self._by_fd[connection.fd] = connection
        self._hub.own(connection.fd, self)
        self._hub.epoll.register(connection.fd, connection.mask)
        self._note(connection)

    def _make_room(self) -> bool:
        """Close one without a session, or one that has long been idle; return whether there was one.

        Whatever the former does: else some hundred that send a byte now and then would keep everybody out.
        """
        stranger = next(iter(self._strangers.values()), None)
        if stranger is not None:
            self._end(stranger, "another needed its place")
            return True
        long_ago_ns = monotonic_ns() - _EVICTED_IDLE_NS
        for connection in itertools.islice(self._connections.values(), _IDLE_SEARCH):
            if connection.used_ns < long_ago_ns and not self._owner.busy(connection.name):
                self._end(connection, "another needed its place")
                return True
        return False

    def _pause(self, error: OSError) -> None:
        """Accept nobody for a moment: the kernel would go on saying that somebody is there."""
        self._shortage.say(log, error, monotonic_ns())
        self._paused = True
        self._hub.epoll.unregister(self._listening.fileno())
        self._hub.due(monotonic_ns() + AGAIN_NS)

    def _step(self, connection: ZmtpConnection) -> Message | None:
        """Look for one event of a connection; return it if it is a message."""
        before = connection.backlog_bytes
        try:
            event = connection.next(self._buffer)
        except Violation as error:
            self._violated(connection, str(error))
            return None
        except Ended as end:
            self._end(connection, str(end))
            return None
        match event:
            case Message():
                # To the end: what stays at the front has been silent for longest.
                self._connections[connection.name] = self._connections.pop(connection.name)
            case Opened(enveloped=enveloped):
                connection.opened(enveloped)
            case Ping(context=context, ttl_ns=ttl_ns):
                connection.ping(context, ttl_ns)
        if connection.backlog_bytes != before:
            self._backlog_changed(connection, before)
        if connection.fd in self._by_fd:
            self._go_on(connection)
        return event if isinstance(event, Message) else None

    def _go_on(self, connection: ZmtpConnection) -> None:
        """See to it that a connection is looked at again when there is something."""
        if connection.more and not connection.stuck and not connection.uploading:
            if connection.large:
                connection.uploading = True
                self._uploads.wait(_Turn(self, connection))
            elif not connection.queued:
                connection.queued = True
                self._ready.append(connection)
        self._watch(connection)
        self._note(connection)

    def read_slice(self, connection: ZmtpConnection) -> None:
        """It is a connection's turn to read of its large frame."""
        if connection.name not in self._connections:
            return
        connection.uploading = False
        message = self._step(connection)
        if message is not None:
            self._owner.large_message(connection.name, message)

    def _watch(self, connection: ZmtpConnection) -> None:
        mask = connection.wants()
        if mask != connection.mask:
            connection.mask = mask
            self._hub.epoll.modify(connection.fd, mask)

    def _note(self, connection: ZmtpConnection) -> None:
        if connection not in self._timed and connection.timed:
            if not self._timed:
                self._hub.due(monotonic_ns() + _SWEEP_NS)
            self._timed[connection] = None

    def _backlog_changed(self, connection: ZmtpConnection, before: int) -> None:
        self._backlog_bytes += connection.backlog_bytes - before
        was_stuck = not connection.mask & READABLE
        self._watch(connection)
        self._note(connection)
        if was_stuck and not connection.stuck:
            self._go_on(connection)
        if self._backlog_bytes > self._backlog_limit:
            worst = max(self._timed, key=lambda each: each.backlog_bytes)
            self._end(worst, "it reads too slowly, and all that waits to be read is too much")

    def _violated(self, connection: ZmtpConnection, why: str) -> None:
        log.info("%s ends a connection: %s", self.address, why)
        last_word = self._owner.violated(why)
        before = connection.backlog_bytes
        if not connection.last_word(last_word):
            self._end(connection, why)
            return
        connection.readable()
        self._backlog_changed(connection, before)
        if connection.fd in self._by_fd:
            self._go_on(connection)

    def _end(self, connection: ZmtpConnection, why: str) -> None:
        log.debug("%s ends a connection: %s", self.address, why)
        self._forget(connection)
        self._owner.gone(connection.name)

    def _forget(self, connection: ZmtpConnection) -> None:
        del self._connections[connection.name]
        del self._by_fd[connection.fd]
        self._strangers.pop(connection.name, None)
        self._timed.pop(connection, None)
        self._backlog_bytes -= connection.backlog_bytes
        if connection.queued:
            self._ready.remove(connection)
        self._hub.disown(connection.fd)
        connection.close(self._hub.epoll)


class _Turn:
    """A connection that waits to read of its large frame."""

    def __init__(self, listener: ZmtpListener, connection: ZmtpConnection) -> None:
        self._listener = listener
        self._connection = connection

    def read_slice(self) -> None:
        """Read at once."""
        self._listener.read_slice(self._connection)

    def slice_over(self) -> None:
        """All was read at once."""


def _listen(address: str) -> tuple[socket.socket, str]:
    where = addresses.parse_tcp(address, listens=True)
    family, target = addresses.resolve(where, socket.AI_PASSIVE)
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(addresses.BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock, str(addresses.Address(where.host, sock.getsockname()[1]))
