"""Sockets for addresses like ``tcp://127.0.0.1:7401``, and the shorter way between processes of one host.

A listener at a TCP address also listens under a name derived from the address, on an abstract Unix-domain
socket (unix(7)), which needs no file and ends with its process. A connector to an address of this host tries
that name first: a hop over it costs two thirds of a hop over TCP. The name belongs to the network namespace,
as the port does; the connector checks that the listener is a process of its own user. `local` has the
addresses like ``unix:///PATH``. An address like ``name://127.0.0.1:7400`` has the name alone, beside a port
that speaks something else.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import threading
from typing import Any, NamedTuple

from mainspring.transport import local
from mainspring.transport.local import Local

PREFIX = "tcp://"
NAME_PREFIX = "name://"
BACKLOG = 1024
IPV6 = socket.AF_INET6
_SEND_BYTES = 2 << 20
"""Most bytes that a client's kernel may hold of what was sent to a gateway, where the host allows it."""
_ALONE = "-clients"
"""Distinguishes the names that stand alone: those of gateways, for their clients."""
_CREDENTIALS = struct.Struct("3i")
_KEEPALIVE = {socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 5}
"""Seconds, seconds, attempts: the failure of a peer's host is noticed after 12 s even if nothing is sent, and
2 s after it is back. A controller that stands by is sent nothing for hours."""


_TCP_RTO_MAX_MS = 44
"""An option of Linux 6.15 and later (linux/tcp.h), which Python has no name for."""
_RETRANSMIT_MS = 1000
"""The longest time between two attempts to send the same bytes. Without it, it doubles up to two minutes, and
so a connection rests for about as long again as the network was broken."""

Target = tuple[int, Any]
"""A numeric address as sockets take it: its family, and the argument of ``connect``."""


class Address(NamedTuple):
    """An address over TCP to listen at or connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{PREFIX}{host}:{self.port}"


class Named(NamedTuple):
    """An address on this host, by name alone, to listen at or connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return NAME_PREFIX + str(Address(self.host, self.port)).removeprefix(PREFIX)


def parse(address: str, listens: bool = False) -> Address | Local | Named:
    """Return what an address names; raise ValueError unless it is like ``tcp://127.0.0.1:7401``,
    ``unix:///PATH`` or ``name://127.0.0.1:7400``."""
    if address.startswith(NAME_PREFIX):
        return Named(*parse_tcp(PREFIX + address.removeprefix(NAME_PREFIX), listens))
    return local.parse_local(address) if address.startswith(local.PREFIX) else parse_tcp(address, listens)


def parse_tcp(address: str, listens: bool = False) -> Address:
    """Return host and port; raise ValueError unless it is like ``tcp://127.0.0.1:7401``.

    A listener may write ``*`` for all interfaces and for any free port.
    """
    host, _, port = address.removeprefix(PREFIX).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(
            f"{address!r} is not an address; write an address of IPv6 in brackets, like tcp://[::1]:7401"
        )
    if listens:
        host, port = ("0.0.0.0" if host == "*" else host), ("0" if port == "*" else port)
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else -1
    sound = address.startswith(PREFIX) and host and host.isprintable() and not set(host) & set(" []/")
    if not sound or not (0 if listens else 1) <= number < 1 << 16:
        raise ValueError(f"{address!r} is not an address; write it like tcp://127.0.0.1:7401")
    return Address(host, number)


def listen(address: str) -> tuple[Address | Local | Named, list[socket.socket]]:
    """Listen; return the address, and the sockets: the TCP one, and the one by name if the name is free.

    Raises OSError if the address is taken, ValueError if it is malformed.
    """
    wanted = parse(address, listens=True)
    if isinstance(wanted, Local):
        return wanted, [local.listen_local(wanted, BACKLOG)]
    if isinstance(wanted, Named):
        host = resolve(Address(*wanted), socket.AI_PASSIVE)[1][0]
        return wanted, [_listen_by(_name(host, wanted.port, _ALONE))]
    family, target = resolve(wanted, socket.AI_PASSIVE)
    by_tcp = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        by_tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        by_tcp.bind(target)
        by_tcp.listen(BACKLOG)
    except OSError:
        by_tcp.close()
        raise
    bound = Address(wanted.host, by_tcp.getsockname()[1])
    try:
        return bound, [by_tcp, _listen_by(_name(target[0], bound.port))]
    except OSError:
        return bound, [by_tcp]


def _listen_by(name: bytes) -> socket.socket:
    """Listen by a name; raise OSError if it is taken."""
    by_name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        by_name.bind(name)
        by_name.listen(BACKLOG)
    except OSError:
        by_name.close()
        raise
    return by_name


def connect_at_once(address: Address | Local | Named) -> socket.socket | None:
    """Return a connection within this host, or None if no process of this user listens here under its name.

    Raises OSError if no process listens at a local address, or none of this user by name alone.
    """
    if isinstance(address, Local):
        return local.connect_local(address)
    if isinstance(address, Named):
        found = _connect_by_name(Address(*address), _ALONE)
        if found is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no process of this user listens at {address}")
        return found
    return _connect_by_name(address)


def _connect_by_name(address: Address, kind: str = "") -> socket.socket | None:
    try:
        target = str(ipaddress.ip_address("127.0.0.1" if address.host == "localhost" else address.host))
    except ValueError:
        return None
    if not _is_local(target):
        return None
    for host in (target, "::" if ":" in target else "0.0.0.0"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(_name(host, address.port, kind))
            if kind:
                # A large message leaves at once, and not by as many turns as it has buffers full.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
            if user_of(sock) in {os.geteuid(), 0}:
                return sock
        except OSError:
            pass
        sock.close()
    return None


def begin_to_connect(to: Target) -> socket.socket:
    """Return a TCP socket that has begun to connect; raise OSError if that is not possible."""
    family, target = to
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    code = sock.connect_ex(target)
    if code not in {0, errno.EINPROGRESS}:
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


def prepare(sock: socket.socket) -> None:
    """Set a connection's options: send at once, and end if the other host fails."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _RETRANSMIT_MS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def in_numbers(address: Address) -> Target | None:
    """Return the target of an address with a numeric host; None if the host has a name."""
    try:
        return resolve(address, socket.AI_NUMERICHOST)
    except OSError:
        return None


def resolve(address: Address, flags: int = 0, attempt: int = 0) -> Target:
    """Return an address's target, of IPv4 if it has one; raise OSError if the host is unknown.

    A host may have several: ``attempt`` counts from 0, and the next one's target is another one's turn.
    Resolving a host's name may take many seconds.
    """
    found = resolve_all(address, flags)
    return found[attempt % len(found)]


def resolve_all(address: Address, flags: int = 0) -> list[Target]:
    """Return all of an address's targets, those of IPv4 first; raise OSError if the host is unknown."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:
        raise OSError(errno.EINVAL, "no host can have that name") from None
    in_order = sorted(found, key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys((each[0], each[4]) for each in in_order))


def _name(host: str, port: int, kind: str = "") -> bytes:
    return f"\0mainspring{kind}/{host}/{port}".encode()


def _is_local(host: str) -> bool:
    """Say whether a numeric address is this host's: what is sent there comes from there.

    To bind it tells less: with ``ip_nonlocal_bind`` a host may bind an address that another one has.
    """
    if is_loopback(host) or is_unspecified(host):
        return True
    return source_of((socket.AF_INET6 if ":" in host else socket.AF_INET, (host, _ANY_PORT))) == host


_ANY_PORT = 9


def source_of(to: Target) -> str:
    """Return this host's numeric address in what it sends to a target; empty if there is no way to there."""
    family, target = to
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: a datagram socket only looks up the way.
            probe.connect(target)
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def host_of(sock: socket.socket) -> str:
    """Return the numeric address of the host at the other end of a connection; empty if it is this one."""
    if sock.family == socket.AF_UNIX:
        return ""
    try:
        there, here = str(sock.getpeername()[0]), str(sock.getsockname()[0])
    except OSError:
        return "unknown"
    return "" if there == here or is_loopback(there) else there


def is_loopback(host: str) -> bool:
    """Say whether a host's address or name means, on each host, that host itself."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.rstrip(".").lower().rpartition(".")[2] == "localhost"
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def is_unspecified(host: str) -> bool:
    """Say whether a host stands for every address of the one that listens."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "*"
    return (getattr(found, "ipv4_mapped", None) or found).is_unspecified


def user_of(sock: socket.socket) -> int:
    """Return the user of the process at the other end of a Unix-domain socket."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


class Lookup:
    """Resolves a host's name in a thread, because the system's resolver may wait for many seconds.

    ``fd`` is readable once there is an answer. A link has one lookup at a time, so there are at most as many
    threads as links to hosts whose name can't be resolved.
    """

    def __init__(self, address: Address, attempt: int = 0) -> None:
        """``attempt``: as `resolve` has it."""
        self._address = address
        self._attempt = attempt
        self._lock = threading.Lock()
        self._closed = False
        self._found: Target | OSError | None = None
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threading.Thread(target=self._run, name="lookup", daemon=True).start()

    def result(self) -> Target:
        """Return the answer once there is one; raise OSError if there is no such host."""
        assert self._found is not None, f"{self._address} is still being looked up"
        if isinstance(self._found, OSError):
            raise self._found
        return self._found

    def close(self) -> None:
        """Abandon the lookup; its thread ends when the resolver answers."""
        with self._lock:
            self._closed = True
            os.close(self.fd)

    def _run(self) -> None:
        try:
            found: Target | OSError = resolve(self._address, attempt=self._attempt)
        except OSError as error:
            found = error
        with self._lock:
            # The descriptor's number may belong to another file once the lookup is closed.
            if not self._closed:
                self._found = found
                os.eventfd_write(self.fd, 1)
