"""Which user a client over the loopback is: the kernel says who opened the other end of its connection.

TCP has nothing like SO_PEERCRED, but the kernel's diagnosis of sockets (sock_diag(7)) tells the user of any
socket of this host by its two addresses, in some 10 us. A connection from another host has no other end here,
and one whose other end has been closed says nothing any more: the user is not known then, and nobody is taken
for somebody.
"""

from __future__ import annotations

import itertools
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ESTABLISHED: Final = 1
"""The only state that counts: of a socket that is being closed the kernel says user 0."""
_OVERFLOW_USER: Final = 65_534
"""Stands for all users that the gateway's user namespace does not have."""
_HEADER: Final = struct.Struct("=IHHII")
_QUESTION: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_ANSWERED: Final = struct.Struct("=BB")
_USER: Final = struct.Struct("=I")
_SOCKET_ID_BYTES: Final = 48
_USER_AT: Final = _HEADER.size + 4 + _SOCKET_ID_BYTES + 12
_ANSWER_BYTES: Final = 4_096
_ANY_COOKIE: Final = b"\xff" * 8


class End(NamedTuple):
    """One end of a TCP connection."""

    host: IPv4Address | IPv6Address
    port: int


def end_of(host: str, port: int) -> End:
    """Return an end by its numeric address; raise ValueError if it has none."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return End(mapped or address, port)


class PeerUsers:
    """Asks the kernel; see the module's docstring."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._numbers = itertools.count(1)

    def user_of(self, peer: End, own: End) -> int | None:
        """Return the id of the user who opened ``peer``, connected to ``own``; None if that is not known."""
        if not peer.host.is_loopback or peer.host.version != own.host.version:
            return None
        number = next(self._numbers)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
                self._socket.setblocking(False)
            self._socket.send(_question(peer, own, number))
            while True:
                # The kernel has answered when `send` returns.
                answer = self._socket.recv(_ANSWER_BYTES)
                if _HEADER.unpack_from(answer)[3] == number:
                    return _user(answer)
        except OSError:
            return None

    def close(self) -> None:
        """Ask nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _question(peer: End, own: End, number: int) -> bytes:
    family = socket.AF_INET if peer.host.version == 4 else socket.AF_INET6
    hosts = [end.host.packed.ljust(16, b"\0") for end in (peer, own)]
    body = b"".join(
        (
            _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFF_FFFF),
            _PORTS.pack(peer.port, own.port),
            *hosts,
            bytes(4),
            _ANY_COOKIE,
        )
    )
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, number, 0) + body


def _user(answer: bytes) -> int | None:
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _BY_FAMILY or len(answer) < _USER_AT + _USER.size:
        return None
    if _ANSWERED.unpack_from(answer, _HEADER.size)[1] != _ESTABLISHED:
        return None
    user: int = _USER.unpack_from(answer, _USER_AT)[0]
    return None if user == _OVERFLOW_USER else user
