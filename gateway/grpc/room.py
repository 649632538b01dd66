"""Room for new clients of gRPC: where few connections are left, those that say nothing are closed.

gRPC's own server turns new clients away once it has as many connections as it may, and gives one that says
nothing the whole time of a handshake. So whoever opens many in silence would keep everybody else out for that
long. HTTP's listener closes the oldest such connection for each new one; gRPC's does not tell of new ones, so
its connections are looked at while the process has nearly as many descriptors as fill the bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import Final

from mainspring.gateway.grpc.going import connections

LOOK_S: Final = 0.25
_FULL: Final = 0.75
"""Part of the bound from which on silent connections are closed."""
SILENT_MS: Final = 300
"""Time for which a connection may say nothing, or too little to be one of HTTP/2, where few are left."""
_LEAST_BYTES: Final = 33
"""Bytes of a client's preface and of its first frame: whoever has sent fewer has not begun to talk."""
_TCP_INFO: Final = struct.Struct("=8B24I4Q")
"""The beginning of Linux's ``struct tcp_info``, up to ``tcpi_bytes_received``."""
_LAST_SENT_MS: Final = 8 + 9
"""Place of ``tcpi_last_data_sent`` there: since the server's own first frame, or since the beginning."""
_MOST_AT_ONCE: Final = 64
"""Connections that are closed in one look: each takes a second descriptor meanwhile."""


async def keep_room(port: int, bound: int) -> None:
    """Keep room for new clients among the ``bound`` connections to this port, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        if _open_files() >= _FULL * bound:
            await make_room(port, _FULL * bound)


async def make_room(port: int, least: float) -> int:
    """Close the connections that say nothing, if there are ``least`` or more in all; return how many."""
    silent: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        count = 0
        for each in connections(port):
            count += 1
            if len(silent) < _MOST_AT_ONCE and _is_silent(each):
                silent.append(stack.enter_context(each))
            else:
                each.close()
            if not count % 64:
                await asyncio.sleep(0)
        if count < least:
            return 0
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
        return bool(info[-1] < _LEAST_BYTES and info[_LAST_SENT_MS] >= SILENT_MS)
    return False
