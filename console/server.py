"""The console's process: one thread, one event loop for the stream, the pages and the scripts."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import threading
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from mainspring.console.config import ConsoleConfig
from mainspring.console.web.api import Api
from mainspring.console.web.files import Files
from mainspring.console.web.guard import Guard, Names
from mainspring.console.web.listener import listen, server
from mainspring.console.web.live_source import LiveSource
from mainspring.console.web.pictures import Pictures
from mainspring.console.web.recorded_source import RecordedSource
from mainspring.console.web.socket import PageSocket, turn_away
from mainspring.console.web.source import Source
from mainspring.transport.asgi import Server
from mainspring.transport.tokens import TokenFile, credential

_STOP_POLL_S = 0.05
"""Longest time that a stop can go unnoticed."""


def run(config: ConsoleConfig, stop: threading.Event, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until ``stop`` is set.

    ``on_ready`` is called with the address, such as ``http://127.0.0.1:8003``, once browsers can connect;
    whether a controller is there does not matter. Raises OSError if the address can't be had, ValueError if
    the file of tokens or the log can't be used.
    """
    # What strangers send does not belong into this process's log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    tokens = TokenFile(config)
    listener, address = listen(config.address)
    ready = functools.partial(on_ready, address) if on_ready is not None else _nothing
    loop = asyncio.new_event_loop()
    with listener:
        try:
            source = open_source(config, operable=tokens.gate.closed)
            loop.run_until_complete(serve(config, source, tokens, listener, stop, ready))
        finally:
            loop.close()


def open_source(config: ConsoleConfig, operable: bool) -> Source:
    """Return what the configuration says is shown; raise OSError or ValueError if it can't be."""
    return RecordedSource(config) if config.log_dir else LiveSource(config, operable)


async def serve(
    config: ConsoleConfig,
    source: Source,
    tokens: TokenFile,
    listener: socket.socket,
    stop: threading.Event,
    on_ready: Callable[[], object],
) -> None:
    """Serve what a source holds on a listening socket until ``stop`` is set; close the source."""
    web = server(Web(config, source, tokens).application(), config)
    try:
        async with asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(source.follow())
            serving = tasks.create_task(web.serve([listener]))
            await _until(stop, web, serving, on_ready)
            web.should_exit = True
            await serving
            follower.cancel()
    finally:
        source.close()


async def _until(
    stop: threading.Event, web: Server, serving: asyncio.Task[None], on_ready: Callable[[], object]
) -> None:
    """Wait for the stop; say meanwhile when browsers can connect."""
    said = False
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(_STOP_POLL_S)
        if web.started and not said:
            said = True
            on_ready()


def _nothing() -> None:
    """Do nothing."""


class Web:
    """Serves the pages of one source."""

    def __init__(self, config: ConsoleConfig, source: Source, tokens: TokenFile) -> None:
        self._config = config
        self._source = source
        self.pictures = Pictures(source, round(config.update_interval_ms * 1e6), config.query_share)
        self.pages = 0
        """Pages that are connected."""
        self._api = Api(config, source, self.pictures, tokens)

    def application(self) -> ASGIApp:
        """Return the ASGI application."""
        files = Files()
        routes = [
            WebSocketRoute("/ws", self._serve_page),
            *self._api.routes(),
            Route("/{path:path}", files.serve),
        ]
        return Guard(Starlette(routes=routes), Names(self._config.hosts))

    async def _serve_page(self, socket: WebSocket) -> None:
        if self.pages >= self._config.max_pages:
            await turn_away(socket, f"{self.pages} pages are open here, and more may not be")
            return
        self.pages += 1
        try:
            page = PageSocket(socket, self.pictures, self._source, self._refused, self._config)
            await page.serve()
        finally:
            self.pages -= 1

    def _refused(self, token: str | None) -> str:
        """Return why the bearer of this token may see nothing; empty if it may."""
        return self._api.refused(credential(token or ""))
