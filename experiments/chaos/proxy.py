"""A connection's way from clients to a gateway, that can be cut, or stand still."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable

_AT_ONCE = struct.pack("ii", 1, 0)
"""A connection that is closed with this is reset."""


class Proxy:
    """Passes bytes on between clients and one address, from a thread of its own."""

    def __init__(self, host: str, port: int, goal: Callable[[], tuple[str, int]]) -> None:
        """Listen at a port; ``goal`` says where a new connection goes."""
        self._place, self._goal = (host, port), goal
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def cut(self) -> None:
        """Reset all connections at once."""
        self._loop.call_soon_threadsafe(self._reset)

    def stall(self) -> None:
        """Carry nothing from now on; connections stay open, and new ones are accepted."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def flow(self) -> None:
        """Carry everything again."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        """End all connections, and listen no more."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _reset(self) -> None:
        for each in self._writers:
            each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            each.transport.abort()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self._place)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flows.set()
        for each in self._writers:
            each.transport.abort()
        own = asyncio.current_task()
        await asyncio.gather(
            *(each for each in asyncio.all_tasks() if each is not own), return_exceptions=True
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(*self._goal())
            both = {writer, to_writer}
            self._writers |= both
            try:
                await asyncio.gather(self._carry(reader, to_writer), self._carry(to_reader, writer))
            finally:
                self._writers -= both
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        finally:
            writer.transport.abort()
