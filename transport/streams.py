"""Connections of an event loop (asyncio), with the addresses, handshake and framing of all others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from mainspring.transport import addresses
from mainspring.transport.bounds import Ended, Limits
from mainspring.transport.channel import Message
from mainspring.transport.framing import HEAD, head, size_of, sizes_of
from mainspring.transport.greeting import Pass, new_nonce, trusted
from mainspring.transport.handshake import Accepting, Connecting, Handshake, Identity, Unproved
from mainspring.transport.local import Local

GREETING_S = 5.0
"""The time that a new connection has for the handshake."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def serve(
    address: str, serve_one: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> tuple[str, asyncio.Server]:
    """Listen; return the address with the real port, and the server. Raises OSError and ValueError."""
    where, sockets = addresses.listen(address)
    for each in sockets[1:]:
        each.close()
    return str(where), await asyncio.start_server(serve_one, sock=sockets[0], backlog=addresses.BACKLOG)


async def open_connection(address: str, shows: Pass, expects: Identity) -> Streams:
    """Connect to an expected process; raise OSError, ValueError on a bad address, and `Violation`."""
    where = addresses.parse(address)
    if isinstance(where, Local):
        reader, writer = await asyncio.open_connection(sock=addresses.connect_at_once(where))
    else:
        reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        handshake = Connecting(Identity(shows.role), shows.secret, _trusted(writer), new_nonce(), expects)
        await _greet(reader, writer, handshake)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shows: Pass, accepts: tuple[str, ...]
) -> Identity:
    """Return who has connected; raise `Violation`, `Ended` and TimeoutError if it does not belong here."""
    handshake = Accepting(Identity(shows.role), shows.secret, _trusted(writer), new_nonce(), accepts)
    async with asyncio.timeout(GREETING_S):
        await _greet(reader, writer, handshake)
    return handshake.peer


async def receive(reader: asyncio.StreamReader, limits: Limits) -> Message:
    """Return the next message; raise `Violation`, before any of it is read, on one beyond the limits.

    Raises EOFError if the connection ends before, and OSError.
    """
    size, tensors = HEAD.unpack(await reader.readexactly(HEAD.size))
    limits.refuse(tensors, size, size)
    sizes = [size]
    if tensors:
        layout = sizes_of(tensors)
        sizes += layout.unpack(await reader.readexactly(layout.size))
        limits.refuse(tensors, max(sizes), sum(sizes))
    return [await reader.readexactly(each) for each in sizes]


async def send(writer: asyncio.StreamWriter, parts: Sequence[bytes]) -> None:
    """Send a message, and wait until there is room for another; raise OSError."""
    writer.writelines((head([size_of(part) for part in parts]), *parts))
    await writer.drain()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> None:
    writer.write(handshake.opening)
    try:
        while handshake.wants:
            writer.write(handshake.take(await reader.readexactly(handshake.wants)))
    except Unproved as error:
        writer.write(error.reply)
        raise
    except EOFError:
        raise Ended("it closed the connection before it had said who it is") from None


def _trusted(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return False
    # The transport's own object has no getsockopt of this kind in every event loop.
    with socket.socket(fileno=socket.dup(sock.fileno())) as same:
        return trusted(same)
