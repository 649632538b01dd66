"""The endpoint that Prometheus scrapes: /metrics, on the gateway's HTTP server with an address of its own.

It is open to everyone who reaches the address, tokens or not: serve it where only those reach it who may know
which models there are and how busy they are.
"""

from __future__ import annotations

import asyncio
import logging

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.descriptors import METRICS_CONNECTIONS
from mainspring.gateway.http.exchange import Exchange
from mainspring.gateway.http.routes import Route, Routes
from mainspring.gateway.http.server import HttpServer, listening
from mainspring.gateway.metrics.page import MetricsPage
from mainspring.gateway.metrics.text import CONTENT_TYPE
from mainspring.gateway.services import Services

log = logging.getLogger("mainspring.gateway")

GET = b"GET"


class Scrapes:
    """Answers scrapes; those that come while a page is made get that page."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page
        self._making: asyncio.Task[None] | None = None
        self._waiting: list[Exchange] = []

    def metrics(self, exchange: Exchange) -> None:
        """Reply with the page once it is made."""
        self._waiting.append(exchange)
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())

    def where(self, exchange: Exchange) -> None:
        """Say where the page is."""
        exchange.reply(200, (b"The gateway's metrics are at /metrics.\n",), b"text/plain; charset=utf-8")

    def close(self) -> None:
        """Make no more pages."""
        if self._making is not None:
            self._making.cancel()
        self._page.close()

    async def _make(self) -> None:
        page = None
        try:
            page = await self._page.make()
        except Exception:
            log.exception("no page of metrics")
        waiting, self._waiting, self._making = self._waiting, [], None
        for exchange in waiting:
            if page is None:
                exchange.fail(500, "internal: the gateway failed at its metrics; its log says how")
            else:
                exchange.reply(200, (page,), CONTENT_TYPE.encode())


async def serve_metrics(services: Services, config: GatewayConfig) -> HttpServer:
    """Serve metrics at the configuration's ``metrics_address``; raise OSError if that can't be had."""
    scrapes = Scrapes(MetricsPage(services, milliseconds(config.metrics_timeout_ms)))
    routes = (
        Route("/metrics", {GET: scrapes.metrics}, open=True),
        Route("/", {GET: scrapes.where}, open=True),
    )
    server = HttpServer(services, config, Routes(routes), scrapes.close, METRICS_CONNECTIONS)
    return await listening(server, "metrics", config.metrics_address)
