"""What goes over a ZMTP connection, as bytes. Pure.

First a *greeting* of 64 bytes from both ends, then a READY *command* from both, then messages of one or more
*frames* and now and then a command. A frame is a byte of flags, its size (one byte, or eight in a long frame,
big-endian) and its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_VERSION: Final = bytes((3, 1))
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
GREETING: Final = SIGNATURE + _VERSION + _MECHANISM + bytes(32)
MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_LONGEST_SHORT: Final = 255
_JOINED_BYTES: Final = 1 << 12
"""Frames up to here are copied together: that costs less than to send their parts."""
SOCKET_TYPES: Final = frozenset({b"DEALER", b"REQ", b"ROUTER"})
"""What a ROUTER talks to (RFC 28)."""


class Violation(Exception):
    """The peer sent what no ZeroMQ client sends, or more than is allowed; the text says what."""


def check_greeting(data: bytes | memoryview) -> bool:
    """Return whether a peer's greeting is whole; raise `Violation` as soon as it can't become one.

    Ten bytes of a signature whose middle means nothing, the version, the name of the mechanism, the rest.
    """
    known = bytes(data[: len(GREETING)])
    if known[:1] not in (b"", b"\xff") or known[9:10] not in (b"", b"\x7f"):
        raise Violation(f"it begins with {known[:10]!r}: that is no ZeroMQ client")
    if len(known) > 10 and known[10] < 3:
        raise Violation(f"it speaks ZMTP {known[10]}; ZeroMQ 4.0 and later speak 3, which is needed here")
    mechanism = known[12:32].rstrip(b"\0")
    if len(known) >= 32 and mechanism != b"NULL":
        raise Violation(f"it wants the security mechanism {mechanism!r}; there is only NULL here")
    return len(known) == len(GREETING)


def command(name: bytes, body: bytes = b"") -> bytes:
    """Return a command as a frame."""
    size = 1 + len(name) + len(body)
    return header(COMMAND, size) + bytes((len(name),)) + name + body


def ready() -> bytes:
    """Return the command that ends the handshake: what kind of socket this is."""
    return command(b"READY", _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b""))


def error(reason: str) -> bytes:
    """Return the command that refuses a peer in its handshake."""
    text = reason.encode()[:_LONGEST_SHORT]
    return command(b"ERROR", bytes((len(text),)) + text)


def split_command(body: bytes) -> tuple[bytes, bytes]:
    """Return a command's name and what follows it; raise `Violation` if there is none."""
    length = body[0] if body else 0
    if not length or len(body) < 1 + length:
        raise Violation("a command of it has no name")
    return body[1 : 1 + length], body[1 + length :]


def properties(data: bytes) -> dict[bytes, bytes]:
    """Return READY's properties, their names in small letters; raise `Violation` if they are none."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_at = name_end + 4
        end = value_at + int.from_bytes(data[name_end:value_at])
        if not data[at] or end > len(data) or value_at > len(data):
            raise Violation("the properties of its READY are damaged")
        found[data[at + 1 : name_end].lower()] = data[value_at:end]
        at = end
    return found


def frames(parts: Sequence[Any], envelope: bool = False) -> list[Any]:
    """Return a message as what is to be sent: small parts joined with their headers, large ones uncopied.

    ``envelope``: with an empty frame first, as REQ sockets want it.
    """
    joined = bytearray(header(MORE, 0) if envelope else b"")
    made: list[Any] = []
    last = len(parts) - 1
    for index, part in enumerate(parts):
        size = part.nbytes if type(part) is memoryview else len(part)
        joined += header(MORE if index < last else 0, size)
        if size <= _JOINED_BYTES:
            joined += part
        else:
            made += (bytes(joined), part)
            joined.clear()
    if joined:
        made.append(bytes(joined))
    return made


def header(flags: int, size: int) -> bytes:
    """Return what comes before the body of a frame."""
    if size <= _LONGEST_SHORT:
        return bytes((flags, size))
    return bytes((flags | LONG,)) + size.to_bytes(8)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4) + value
