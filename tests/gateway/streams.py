"""A peer of the gateway that writes its bytes itself, and what it reads."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import msgspec

from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import TO_CLIENT, encode
from tests.patience import PATIENCE_S

GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes((3, 1)) + b"NULL".ljust(20, b"\0") + bytes(32)
"""ZMTP's, with which each end begins."""
MORE, LONG, COMMAND = 1, 2, 4
"""A frame's flags."""


def command(name: bytes, body: bytes = b"") -> bytes:
    """Return a command as a frame."""
    return header(1 + len(name) + len(body), COMMAND) + bytes([len(name)]) + name + body


def ready(socket_type: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    """Return a client's READY, as libzmq writes it."""
    properties = {b"Socket-Type": socket_type, b"Identity": identity}
    body = [bytes([len(name)]) + name + struct.pack(">I", len(it)) + it for name, it in properties.items()]
    return command(b"READY", b"".join(body))


def message(*parts: bytes) -> bytes:
    """Return a message's frames."""
    last = len(parts) - 1
    return b"".join(header(len(part), MORE if at < last else 0) + part for at, part in enumerate(parts))


def header(size: int, flags: int = 0) -> bytes:
    """Return a long frame's header."""
    return bytes([flags | LONG]) + struct.pack(">Q", size)


class Stream:
    """A TCP connection to a gateway."""

    def __init__(self, address: str, *, handshake: bool = True, hello: bool = False) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._read = b""
        if handshake or hello:
            self.send(GREETING + ready())
            self.read(len(GREETING))
            assert self.frame()[0] & COMMAND
        if hello:
            self.say(clients.ClientHello(PROTOCOL_VERSION, "stream"))
            assert isinstance(self.reply(), clients.ClientWelcome)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, head: msgspec.Struct, *parts: bytes) -> None:
        self.send(message(encode(head), *parts))

    def try_to_send(self, data: bytes) -> bool:
        """Return False if the gateway has ended the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def read(self, count: int) -> bytes:
        while len(self._read) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self._read += more
        data, self._read = self._read[:count], self._read[count:]
        return data

    def frame(self) -> tuple[int, bytes]:
        flags = self.read(1)[0]
        size = struct.unpack(">Q", self.read(8))[0] if flags & LONG else self.read(1)[0]
        return flags, self.read(size)

    def parts(self) -> Sequence[bytes]:
        parts: list[bytes] = []
        while True:
            flags, body = self.frame()
            parts.append(body)
            if not flags & MORE:
                return parts

    def reply(self) -> clients.ToClient:
        return TO_CLIENT.decode(self.parts()[0])

    def ended(self) -> bool:
        """Wait for the gateway to end the connection; return whether it did, whatever came before."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
