"""The listening socket and its connections, bounded: how many, how long they may say nothing, how much."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from mainspring.console.config import ConsoleConfig, parse_address
from mainspring.transport.asgi import Connection, Server, listen_at
from mainspring.transport.keys import ServerKeys

MOST_FRAGMENTS = 256
"""Most fragments of one message of a page."""
_KEPT_S = 30
"""Seconds that a connection without requests stays open."""


def listen(address: str) -> tuple[socket.socket, str]:
    """Return a listening socket and its address with the real port; raise OSError if it can't be had."""
    listener, where = listen_at(*parse_address(address))
    return listener, f"{address.partition('://')[0]}://{where}"


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


def server(application: ASGIApp, config: ConsoleConfig) -> Server:
    """Return what serves an application within the configuration's bounds; raise OSError of bad keys."""
    keys = ServerKeys(config.tls, clients=config.client_certificates) if config.encrypted else None
    bounds = {"most": config.max_connections, "patience_s": config.header_timeout_ms / 1e3}
    made = Server(
        uvicorn.Config(
            application,
            http=type("Connection", (Connection,), bounds),
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
    made.keys, made.handshake_s = keys, config.header_timeout_ms / 1e3
    return made
