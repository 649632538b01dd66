"""Connections of gRPC's clients are told to go: GOAWAY, while their calls are answered as before.

gRPC's own server sends GOAWAY by a connection's age, or once it stops, and then it cancels what clients send
in the same instant. So this frame, which changes nothing for the server, is written to the client's socket
beside it: the client begins no more calls over the connection, and closes it once those under way have their
answers (RFC 9113, section 6.8). It may stand only between two frames: it is written where nothing that the
server wrote is on its way, at two checks in a row. Over TLS it can't be; there the age alone counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from time import monotonic
from typing import Final

GOAWAY: Final = struct.pack(">I", 8)[1:] + b"\x07\x00" + struct.pack(">III", 0, 0x7FFFFFFF, 0)
"""The frame: no stream is refused, and nothing is wrong."""
_LOOK_S = 0.01
_ROUND_S = 0.5


async def keep_telling(port: int) -> None:
    """Tell every connection to this port of the process to go, and those that come, until cancelled."""
    while True:
        await tell_to_go(port, _ROUND_S)
        await asyncio.sleep(_ROUND_S)


async def tell_to_go(port: int, patience_s: float) -> int:
    """Tell every connection to this port of the process to go, each once; return how many were told.

    ``patience_s``: how long is waited for those that are being written to.
    """
    told, until = 0, monotonic() + patience_s
    quiet: set[int] = set()
    with contextlib.ExitStack() as stack:
        waiting = {each.fileno(): stack.enter_context(each) for each in connections(port)}
        while waiting:
            idle = {number for number, each in waiting.items() if _all_taken(each)}
            for number in idle & quiet:
                told += _sent(waiting.pop(number))
            quiet = idle
            if monotonic() >= until:
                break
            await asyncio.sleep(_LOOK_S)
    return told


def connections(port: int, *, listening: bool = False) -> Iterator[socket.socket]:
    """Yield a duplicate of each of this process's sockets that is a client's connection to a port.

    With ``listening``: of each that listens at it.
    """
    made: set[int] = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            # A duplicate may have a number that was listed, such as that of the listing itself.
            if number in made or not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(number))
            made.add(found.fileno())
            try:
                mine = found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port
                listens = mine and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if mine and (listens if listening else found.getpeername()):
                    yield found
                    continue
            except OSError:
                # It listens, or its client has gone.
                pass
            found.close()


def _all_taken(connection: socket.socket) -> bool:
    """Return whether the client's host has received all that was written."""
    with contextlib.suppress(OSError):
        (waiting,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        return bool(waiting == 0)
    return True


def _sent(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return connection.send(GOAWAY, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(GOAWAY)
    return False
