"""Room for new clients of gRPC: where few connections are left, those that have asked for nothing are closed.

gRPC's own server turns new clients away once it has as many connections as it may, and gives one that says
nothing the whole time of a handshake, and one that has said its preface half an hour. So whoever opens many
would keep everybody else out for that long. HTTP's listener closes the oldest such connection for each new
one; gRPC's does not tell of new ones, so its connections are looked at while the process has nearly as many
descriptors as fill the bound. Those that say nothing at all the kernel keeps to itself (`defer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import struct
from typing import Final
from urllib.parse import unquote

from mainspring.gateway.grpc.going import connections

LOOK_S: Final = 0.25
_AGAIN_S: Final = 0.05
"""Time until the next look where one has closed connections."""
_FULL: Final = 0.75
"""Part of the bound from which on silent connections are closed."""
SILENT_MS: Final = 300
"""Time since which nothing has been sent to a connection that has asked for nothing, where few are left."""
_TCP_INFO: Final = struct.Struct("=8B24I")
"""The beginning of Linux's ``struct tcp_info``."""
_LAST_SENT_MS: Final = 8 + 9
"""Place of ``tcpi_last_data_sent`` there: since the server's own first frame, or since the beginning."""
_MOST_AT_ONCE: Final = 64
"""Connections that are closed in one look: each takes a second descriptor meanwhile."""
_MOST_REMEMBERED: Final = 4
"""Names of clients, in multiples of the bound, from which on those that have gone are forgotten."""


def defer(port: int, patience_ms: float) -> None:
    """Have the kernel keep a connection to this port to itself until its client, which speaks first, does.

    ``patience_ms``: time after which the server gets it nonetheless, or up to twice that.
    """
    for listener in connections(port, listening=True):
        with listener:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, math.ceil(patience_ms / 1_000))


class Room:
    """The room for clients among the connections to one port."""

    def __init__(self, bound: int) -> None:
        """``bound``: most connections."""
        self._bound = bound
        self._asked: set[str] = set()

    def asks(self, name: str) -> None:
        """A client, by gRPC's name of it, has begun a call: its connection is none of the silent ones."""
        self._asked.add(name)

    async def keep(self, port: int) -> None:
        """Keep room for new clients among the connections to this port, until cancelled."""
        closed = 0
        while True:
            await asyncio.sleep(_AGAIN_S if closed else LOOK_S)
            closed = 0
            if len(self._asked) > _MOST_REMEMBERED * self._bound or _open_files() >= _FULL * self._bound:
                closed = await self.make(port)

    async def make(self, port: int) -> int:
        """Close the connections that have asked for nothing, if few are left; return how many."""
        known = {_place(name): name for name in self._asked}
        here: set[str] = set()
        silent: list[socket.socket] = []
        with contextlib.ExitStack() as stack:
            count = 0
            for each in connections(port):
                count += 1
                name = known.get(_peer(each))
                if name is not None:
                    here.add(name)
                if name is None and len(silent) < _MOST_AT_ONCE and _is_silent(each):
                    silent.append(stack.enter_context(each))
                else:
                    each.close()
                if not count % 64:
                    await asyncio.sleep(0)
            # Those that have asked meanwhile are not among the known.
            self._asked.difference_update(set(known.values()) - here)
            if count < _FULL * self._bound:
                return 0
            asked = {_place(name) for name in self._asked}
            silent = [each for each in silent if _peer(each) not in asked]
            for each in silent:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        return len(silent)


def _open_files() -> int:
    """Return how many descriptors the process has open, at least."""
    # Linux tells the number since 6.2, without a walk through all of them.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))


def _is_silent(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError, struct.error):
        info = _TCP_INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
        return bool(info[_LAST_SENT_MS] >= SILENT_MS)
    return False


def _place(name: str) -> tuple[str, str]:
    """Return host and port of gRPC's name of a client, such as ``ipv6:%5B::1%5D:4711``."""
    host, _, port = unquote(name).partition(":")[2].rpartition(":")
    return host.strip("[]").partition("%")[0], port


def _peer(connection: socket.socket) -> tuple[str, str]:
    """Return host and port of a connection's client, as `_place`."""
    with contextlib.suppress(OSError):
        host, port = connection.getpeername()[:2]
        return host.removeprefix("::ffff:").partition("%")[0], str(port)
    return "", ""
