"""The connections of a socket of ZeroMQ: who may come in, whose message it is, and how one is ended.

libzmq accepts connections and takes in whole frames in a thread of its own, before a program sees anything.
Three things bound what that costs. ZAP (RFC 27) asks here whether the key of a peer is known, before a
message of it is taken. libzmq's monitor says what was accepted, with its descriptor, so that there are never
more connections than may be; and a *stranger*, who has no session yet, is cut off as soon as the kernel has
received more of it than a hello may take.

Each connection gets a name of its own by ZAP (``User-Id``), which comes with each of its messages: neither a
routing id nor a descriptor's number, which another connection may have later, stands for anybody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from itertools import islice
from time import monotonic_ns
from typing import Final, Protocol

import zmq

from mainspring.transport.curve import KnownClients
from mainspring.transport.handshake_rate import HandshakeRate

log = logging.getLogger("mainspring.gateway")

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
STRANGER_BYTES: Final = 64 << 10
"""Most bytes that may be received on a connection without a session, greetings and hellos together."""
MOST_STRANGERS: Final = 1_024
"""Connections without a session at one time; the oldest makes room for one more."""
_LOOK_NS: Final = 10_000_000
"""Time between two looks at strangers: libzmq's one thread takes in some 20 MB meanwhile, of all together."""
_LOOK_EACH_NS: Final = 50_000
"""Time added to that for each stranger, so that many of them cost the gateway a twentieth of its time."""
_NEVER_NS: Final = 1 << 61
_IDLE_SEARCH: Final = 64
_EVICTED_IDLE_NS: Final = 1_000_000_000
_EVENTS: Final = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_POLLIN: Final = int(zmq.POLLIN)
_SRCFD: Final = int(zmq.SRCFD)
_RESET: Final = struct.pack("ii", 1, 0)
_EVENT: Final = struct.Struct("=HI")
_PASSED: Final = struct.Struct("=QQ")
_PASSED_AT: Final = 120
"""Offset of ``tcpi_bytes_acked`` in Linux's ``struct tcp_info``, with ``tcpi_bytes_received`` behind it."""


class Owner(Protocol):
    """The front end, as far as the connections need it."""

    def gone(self, name: bytes) -> None:
        """A connection is over."""

    def busy(self, name: bytes) -> bool:
        """Say whether a connection waits for answers."""

    def flooded(self) -> None:
        """Count a connection that was cut because its host begins too many handshakes of CURVE."""


class _Accepted:
    """One connection that libzmq has accepted."""

    __slots__ = ("base_bytes", "cut", "fd", "heard_ns", "inode", "least", "name")

    def __init__(self, fd: int, inode: int, least: int) -> None:
        self.fd, self.inode = fd, inode
        self.least = least
        """The lowest number that its name may have: lower ones were given to connections before it."""
        self.name = b""
        """Its name, known from its first message on."""
        self.base_bytes = 0
        """Bytes that it had received when its last session ended."""
        self.heard_ns = monotonic_ns()
        self.cut = False


class Connections:
    """See the module's docstring."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listening: zmq.Socket[bytes],
        owner: Owner,
        *,
        most: int,
        known: KnownClients | None,
    ) -> None:
        """Watch a socket before it listens; with ``known``, let in only who shows one of these keys."""
        self._zap = context.socket(zmq.ROUTER)
        self._zap.bind(ZAP_ADDRESS)
        where = f"inproc://monitor-{id(self)}"
        listening.monitor(where, _EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        # Without a bound: libzmq's thread waits where it finds no room, with a lock that closing needs.
        self._monitor.rcvhwm = 0
        self._monitor.connect(where)
        self._owner = owner
        self._most, self._known = most, known
        self._rate = None if known is None else HandshakeRate(monotonic_ns())
        self.port: int | None = None
        """The port of TCP that is listened at; None over ``ipc://``."""
        self._next = 1
        self._by_fd: dict[int, _Accepted] = {}
        self._by_name: dict[bytes, _Accepted] = {}
        """Those that have said something, the longest silent first."""
        self._strangers: dict[int, _Accepted] = {}
        """Those without a session by descriptor, the oldest first."""

    @property
    def descriptors(self) -> tuple[int, int]:
        """Return the descriptors that are readable when `look` has something to do."""
        return self._monitor.fileno(), self._zap.fileno()

    # --- who comes in ---

    def look(self) -> None:
        """Take what libzmq says of connections, then what it asks: in this order, as it happened."""
        self._follow()
        while int(self._zap.get(zmq.EVENTS)) & _POLLIN:
            parts = self._zap.recv_multipart(_NOBLOCK)
            self._follow()
            self._zap.send_multipart(self._judged(parts), _NOBLOCK)

    def _judged(self, parts: list[bytes]) -> list[bytes]:
        """Return the answer to a request of ZAP: ``[routing id, "", version, id, domain, address, ...]``."""
        mechanism, *shown = parts[7:]
        known = self._known
        if known is not None and (mechanism != b"CURVE" or not shown or not known.knows(shown[0])):
            log.info(
                "a client at %s shows a key of CURVE that is not listed", parts[5].decode("ascii", "replace")
            )
            return [*parts[:4], b"400", b"this gateway does not know the key", b"", b""]
        name, self._next = b"%d" % self._next, self._next + 1
        return [*parts[:4], b"200", b"OK", name, b""]

    def _follow(self) -> None:
        while int(self._monitor.get(zmq.EVENTS)) & _POLLIN:
            event, fd = _EVENT.unpack(self._monitor.recv_multipart(_NOBLOCK)[0])
            if event == _ACCEPTED:
                self._accepted(fd)
            else:
                self._ended(fd)

    def _accepted(self, fd: int) -> None:
        self._ended(fd)
        sock = _same(fd)
        if sock is None:
            return
        with sock:
            if self.port is not None and _port(sock) != self.port:
                # It is closed already, and the number another file's.
                return
            accepted = _Accepted(fd, os.fstat(sock.fileno()).st_ino, self._next)
            host = _peer(sock)
        self._by_fd[fd] = self._strangers[fd] = accepted
        if self._rate is not None and not self._rate.allows(monotonic_ns(), host):
            self._cut(accepted)
            self._owner.flooded()
            return
        if len(self._by_fd) > self._most and not self._make_room():
            self._cut(accepted)
        elif len(self._strangers) > MOST_STRANGERS:
            self._cut(next(iter(self._strangers.values())))

    def _make_room(self) -> bool:
        """Cut one without a session, or one that has long been idle; return whether there was one."""
        if len(self._strangers) > 1:
            self._cut(next(iter(self._strangers.values())))
            return True
        long_ago_ns = monotonic_ns() - _EVICTED_IDLE_NS
        for each in islice(self._by_name.values(), _IDLE_SEARCH):
            if each.heard_ns < long_ago_ns and not each.cut and not self._owner.busy(each.name):
                self._cut(each)
                return True
        return False

    def _ended(self, fd: int) -> None:
        accepted = self._by_fd.pop(fd, None)
        if accepted is not None:
            self._strangers.pop(fd, None)
            if accepted.name:
                del self._by_name[accepted.name]
                self._owner.gone(accepted.name)

    # --- whose message it is ---

    def name_of(self, frame: zmq.Frame) -> bytes | None:
        """Return the name of the connection that a message came over; None if it is over already."""
        name = str(frame.get("User-Id")).encode()
        accepted = self._by_name.pop(name, None) or self._first_of(name, frame)
        if accepted is None:
            return None
        accepted.heard_ns = monotonic_ns()
        # To the end: what stays at the front has been silent for longest.
        self._by_name[name] = accepted
        return None if accepted.cut else name

    def _first_of(self, name: bytes, frame: zmq.Frame) -> _Accepted | None:
        self._follow()
        accepted = self._by_fd.get(int(frame.get(_SRCFD)))
        if accepted is None or int(name) < accepted.least:
            return None
        if accepted.name:
            if int(name) < int(accepted.name):
                return None
            # What bore this name was over before its first message was taken.
            del self._by_name[accepted.name]
            self._owner.gone(accepted.name)
        accepted.name = name
        return accepted

    def welcome(self, name: bytes, known: bool) -> None:
        """Say whether a connection has a session."""
        accepted = self._by_name.get(name)
        if accepted is None:
            return
        if known:
            self._strangers.pop(accepted.fd, None)
        elif not accepted.cut:
            accepted.base_bytes = self._received(accepted)
            self._strangers[accepted.fd] = accepted

    # --- ends ---

    def cut(self, name: bytes, why: str) -> None:
        """End a connection, and log why; `Owner.gone` follows once libzmq has seen it."""
        accepted = self._by_name.get(name)
        if accepted is not None and not accepted.cut:
            log.warning("ended the connection of a client over ZeroMQ: %s", why)
            self._cut(accepted)

    def _cut(self, accepted: _Accepted) -> None:
        self._strangers.pop(accepted.fd, None)
        accepted.cut = True
        sock = self._socket(accepted)
        if sock is not None:
            with sock, contextlib.suppress(OSError):
                # With it the peer is told at once, though it waits for room to send.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RDWR)

    def tick(self, now_ns: int) -> int:
        """Cut strangers that send more than a hello; return when to look again."""
        for each in list(self._strangers.values()) if self.port is not None else ():
            if self._received(each) - each.base_bytes > STRANGER_BYTES:
                log.info("a connection ends that sends more than a hello before it has a session")
                self._cut(each)
        return self.due_ns(now_ns)

    def due_ns(self, now_ns: int) -> int:
        """Return when strangers are to be looked at."""
        if self.port is None or not self._strangers:
            return _NEVER_NS
        return now_ns + _LOOK_NS + _LOOK_EACH_NS * len(self._strangers)

    def acknowledged(self, name: bytes) -> int:
        """Return the bytes that a peer's kernel has taken over TCP; 0 if it is not known."""
        accepted = self._by_name.get(name)
        return 0 if accepted is None else self._passed(accepted)[0]

    def _received(self, accepted: _Accepted) -> int:
        return self._passed(accepted)[1]

    def _passed(self, accepted: _Accepted) -> tuple[int, int]:
        """Return the bytes that went to a peer over TCP, and that came of it; 0 where it is not known."""
        sock = self._socket(accepted) if self.port is not None else None
        if sock is None:
            return 0, 0
        with sock:
            try:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _PASSED_AT + _PASSED.size)
                return _PASSED.unpack_from(info, _PASSED_AT)
            except (OSError, struct.error):
                return 0, 0

    def _socket(self, accepted: _Accepted) -> socket.socket | None:
        """Return another descriptor of a connection; None if its own is closed, whoever has its number."""
        sock = _same(accepted.fd)
        if sock is not None and os.fstat(sock.fileno()).st_ino != accepted.inode:
            sock.close()
            return None
        return sock

    def close(self) -> None:
        """Close what watches; the socket that listens has to be told first (``disable_monitor``)."""
        self._monitor.close(0)
        self._zap.close(0)


def _same(fd: int) -> socket.socket | None:
    """Return another descriptor of a socket; None if it is none."""
    try:
        copy = os.dup(fd)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None


def _port(sock: socket.socket) -> object:
    try:
        return sock.getsockname()[1] if sock.family != socket.AF_UNIX else None
    except OSError:
        return None


def _peer(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0]) if sock.family != socket.AF_UNIX else ""
    except OSError:
        return ""
