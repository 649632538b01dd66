"""The console's process: one thread and event loop for the stream, pages and scripts; its socket; its files.

The page's files are read again when they change; browsers ask each time whether theirs are still the same
(``ETag``), so that a newer console never runs half of an older one's page.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import logging
import mimetypes
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from mainspring.console.config import ConsoleConfig, parse_address
from mainspring.console.web.api import Api
from mainspring.console.web.guard import Guard, Names, failure
from mainspring.console.web.pictures import Pictures
from mainspring.console.web.socket import PageSocket, turn_away
from mainspring.console.web.source import LiveSource, RecordedSource, Source
from mainspring.transport.asgi import Connection, Server, listen_at
from mainspring.transport.keys import ServerKeys
from mainspring.transport.tokens import TokenFile, credential

FOLDER = Path(__file__).resolve().parent / "page"
"""Folder of the page's files, in a checkout and in the wheel."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_SQUEEZED = {".css", ".html", ".js", ".json", ".svg", ".txt", ".webmanifest"}
"""Kinds that are sent compressed to who takes that."""


class _File(NamedTuple):
    stamp: tuple[int, int]
    """Time of the last change and size: what differs when a file was written again."""
    etag: str
    kind: str
    plain: bytes
    squeezed: bytes | None


class Files:
    """Serves the files of one folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder.resolve()
        self._files: dict[str, _File] = {}

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file: the path's, or ``index.html``."""
        name = request.path_params.get("path", "") or "index.html"
        file = self._read(name)
        if file is None:
            text = f"there is no {name[:200]!r} here; the console's page is at the root, its API at api/"
            return failure(404, text)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if file.etag.removeprefix("W/") in _listed(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        body = file.plain
        if file.squeezed is not None and "gzip" in _listed(request.headers.get("accept-encoding", "")):
            body, headers["Content-Encoding"] = file.squeezed, "gzip"
        return Response(body, headers=headers, media_type=file.kind)

    def _read(self, name: str) -> _File | None:
        path = PurePosixPath(name)
        if path.is_absolute() or any(part.startswith(".") for part in path.parts) or "\0" in name:
            return None
        try:
            where = (self._folder / path).resolve()
            found = where.stat()
            if not where.is_relative_to(self._folder) or not stat.S_ISREG(found.st_mode):
                return None
            stamp = (found.st_mtime_ns, found.st_size)
            kept = self._files.get(str(path))
            if kept is None or kept.stamp != stamp:
                kept = self._files[str(path)] = _load(where, stamp)
        except (OSError, RuntimeError):
            return None  # no such file, a name that is too long, links that go round
        return kept


def _load(path: Path, stamp: tuple[int, int]) -> _File:
    plain = path.read_bytes()
    suffix = path.suffix.lower()
    kind = _TYPES.get(suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    squeezed = gzip.compress(plain, 9, mtime=0) if suffix in _SQUEEZED else None
    if squeezed is not None and len(squeezed) >= len(plain):
        squeezed = None
    return _File(stamp, f'W/"{hashlib.sha256(plain).hexdigest()[:32]}"', kind, plain, squeezed)


def _listed(value: str) -> set[str]:
    """Return the entries of a header that is a list, without weights; weak tags as strong ones."""
    entries = [entry.strip().removeprefix("W/") for entry in value.split(",")]
    wanted = [entry for entry in entries if not entry.replace(" ", "").endswith(";q=0")]
    return {entry.partition(";")[0].strip() for entry in wanted}


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
