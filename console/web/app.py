"""The web application: which path leads where, and who may ask for it."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from mainspring.console.config import ConsoleConfig
from mainspring.console.web.api import Api
from mainspring.console.web.files import Files
from mainspring.console.web.guard import Guard, Names
from mainspring.console.web.pictures import Pictures
from mainspring.console.web.socket import PageSocket, turn_away
from mainspring.console.web.source import Source
from mainspring.transport.token_file import TokenFile
from mainspring.transport.tokens import credential


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
            await turn_away(socket, f"{self.pages} pages are open here, and more may not be (max_pages)")
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
