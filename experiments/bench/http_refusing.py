"""A server that refuses every request unread: what refusing costs by itself on the gateway's event loop.

It is uvloop with one protocol that answers whatever a read brings with the same bytes, so each request has to
come whole in one read, as those of `http_load` do. It parses, counts and decides nothing.
``python -m mainspring.experiments.bench.http_refusing PORT`` prints a line once it listens.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

_BODY = b'{"error":"more comes than this server can work off","reason":"overloaded"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_BODY), _BODY)
)


class Refusing(asyncio.Protocol):
    """One client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        # uvloop's transports are of no class of asyncio's.
        self._transport: Any = transport

    def data_received(self, _data: bytes) -> None:
        """Refuse a request."""
        self._transport.write(REFUSAL)


async def serve(port: int) -> None:
    """Serve on a port of loopback until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Refusing, "127.0.0.1", port, backlog=1_024)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
