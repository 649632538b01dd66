"""A balancer of TCP connections in the test's own loop: in turn to each target that says that it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import NamedTuple

LOOK_S = 0.05
"""Between two looks at a target's health."""


class Target(NamedTuple):
    """A gateway: ports by protocol, of which ``http`` has the health check."""

    name: str
    http: int
    grpc: int
    zeromq: int


class Balancer:
    """Passes connections on; one port for each protocol."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.healthy: set[str] = set()
        self.open: Counter[tuple[str, str]] = Counter()
        """Connections that are open, by protocol and target."""
        self.begun = 0
        """Connections that there have been."""
        self.ports: dict[str, int] = {}
        self._next: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, and look at targets' health from now on."""
        for protocol in ("http", "grpc", "zeromq"):

            async def passed_on(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: str = protocol
            ) -> None:
                await self._pass_on(protocol, reader, writer)

            server = await asyncio.start_server(passed_on, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports[protocol] = server.sockets[0].getsockname()[1]
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Take nothing new."""
        assert self._watching is not None
        self._watching.cancel()
        for server in self._servers:
            server.close()

    def shares(self, protocol: str) -> dict[str, int]:
        """Return how many connections each target has."""
        return {target.name: self.open[protocol, target.name] for target in self.targets}

    async def _watch(self) -> None:
        while True:
            for target in list(self.targets):
                if await is_ready(target.http):
                    self.healthy.add(target.name)
                else:
                    self.healthy.discard(target.name)
            await asyncio.sleep(LOOK_S)

    async def _pass_on(
        self, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        able = [target for target in self.targets if target.name in self.healthy]
        if not able:
            writer.close()
            return
        self._next[protocol] += 1
        target = able[self._next[protocol] % len(able)]
        there, back = await asyncio.open_connection("127.0.0.1", getattr(target, protocol))
        self.begun += 1
        self.open[protocol, target.name] += 1
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
        self.open[protocol, target.name] -= 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def is_ready(port: int) -> bool:
    """Say whether a gateway's health check says that it is ready."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        head = await reader.read()
        writer.close()
        return head.startswith(b"HTTP/1.1 200")
    return False
