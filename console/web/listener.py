"""The listening socket and its connections, bounded: how many, how long they may say nothing, how much."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from mainspring.console.config import ConsoleConfig, parse_address
from mainspring.transport import addresses

_BACKLOG = 128
MOST_FRAGMENTS = 256
"""Of one message of a page."""
_KEPT_S = 30
"""How long a connection without requests stays open."""


def listen(address: str) -> tuple[socket.socket, str]:
    """Return a listening socket and its address with the real port; raise OSError if it can't be had."""
    host, port = parse_address(address)
    host = "0.0.0.0" if host == "*" else host
    family, target = addresses.resolve(addresses.Address(host, port), socket.AI_PASSIVE)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    shown = f"[{host}]" if ":" in host else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


class _Connection(H11Protocol):
    """A connection that is refused beyond a number of them, and closed if it asks for nothing."""

    most = 0
    patience_s = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take it, or close it at once."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._be_patient()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; a head that was begun has to come in time."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._be_patient()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _be_patient(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience_s, self.transport.abort)


class _Page(WebSocketsSansIOProtocol):
    """A WebSocket whose messages come in a bounded number of fragments, empty ones too."""

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment, or end the connection."""
        if self.close_sent:
            return
        if len(self.frames) >= MOST_FRAGMENTS:
            self.frames = []
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MOST_FRAGMENTS} fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)


class Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def server(application: ASGIApp, config: ConsoleConfig) -> Server:
    """Return what serves an application within the configuration's bounds."""
    bounds = {"most": config.max_connections, "patience_s": config.header_timeout_ms / 1e3}
    return Server(
        uvicorn.Config(
            application,
            http=type("Connection", (_Connection,), bounds),
            ws=_Page,
            ws_max_size=config.max_message_bytes,
            ws_ping_interval=config.ping_interval_ms / 1e3,
            ws_ping_timeout=config.ping_interval_ms / 1e3,
            ws_per_message_deflate=False,
            h11_max_incomplete_event_size=config.max_header_bytes,
            timeout_keep_alive=_KEPT_S,
            timeout_graceful_shutdown=max(1, round(config.stop_timeout_ms / 1e3)),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
    )
