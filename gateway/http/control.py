"""What clients ask beside inference: health, metadata, configuration, statistics and the model repository."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.http.exchange import Exchange, Fault, Handler, reply_to_error
from mainspring.gateway.http.shared_memory import SharedMemory
from mainspring.gateway.oip.errors import not_ready
from mainspring.gateway.oip.metadata import (
    Live,
    ModelReady,
    Ready,
    model_metadata,
    server_metadata,
)
from mainspring.gateway.oip.model_config import model_config
from mainspring.gateway.oip.parameters import version_of
from mainspring.gateway.repository import ModelRepository, index_of
from mainspring.gateway.services import Services, change_log, log_settings
from mainspring.gateway.statistics_report import StatisticsReport
from mainspring.messages.codes import Reason
from mainspring.transport.tokens import from_header


class IndexRequest(msgspec.Struct):
    """The models to list."""

    ready: bool = False


class Change(msgspec.Struct):
    """The way to load or unload a model."""

    parameters: dict[str, Any] = {}


class Control:
    """Handles these routes."""

    def __init__(self, services: Services, shared: SharedMemory) -> None:
        self._services = services
        self._driver = services.driver
        self._shared = shared
        self._tasks: set[asyncio.Task[None]] = set()

    # --- health and metadata ---

    def live(self, exchange: Exchange) -> None:
        """Say that the gateway runs."""
        exchange.reply_json(Live(True))

    def ready(self, exchange: Exchange) -> None:
        """Say whether requests can be served."""
        if why := self._driver.readiness.server():
            exchange.reply_json(not_ready(why), 503)
        else:
            exchange.reply_json(Ready(True))

    def server(self, exchange: Exchange) -> None:
        """Say who serves."""
        exchange.reply_json(server_metadata(self._driver.config, shared=self._shared.served_to(exchange)))

    def model_ready(self, exchange: Exchange) -> None:
        """Say whether requests for a model would be answered."""
        name, *version = exchange.arguments
        if why := self._driver.readiness.model(name, version_of(version[0]) if version else None):
            exchange.reply_json(not_ready(why), 503)
            return
        exchange.reply_json(ModelReady(name, str(self._signature(exchange).spec.version), True))

    def model(self, exchange: Exchange) -> None:
        """Describe a model's tensors."""
        spec, name = self._signature(exchange).spec, exchange.arguments[0]
        exchange.reply_json(model_metadata(name, spec, self._driver.catalog.versions(name)))

    def model_config(self, exchange: Exchange) -> None:
        """Describe a model in the words of Triton's ModelConfig."""
        spec, name = self._signature(exchange).spec, exchange.arguments[0]
        exchange.reply_json(model_config(name, spec, self._driver.catalog.options(name).config))

    # --- statistics ---

    async def all_statistics(self, exchange: Exchange) -> None:
        """Say what became of the requests for each model."""
        catalog, found = self._driver.catalog, []
        for name in catalog.names():
            if self._sees(exchange, name):
                specs = [catalog.resolve(name, each).spec for each in catalog.versions(name)]
                found += [self._services.statistics.of(spec) for spec in specs]
            # Of thousands of models this takes long, and others are to be served meanwhile.
            await asyncio.sleep(0)
        exchange.reply_json(StatisticsReport(found))

    def model_statistics(self, exchange: Exchange) -> None:
        """Say what became of the requests for a model: of one version, or of all."""
        catalog, (name, *version) = self._driver.catalog, exchange.arguments
        versions = [version_of(version[0])] if version else catalog.versions(name) or [None]
        specs = [catalog.resolve(name, each).spec for each in versions]
        exchange.reply_json(StatisticsReport([self._services.statistics.of(spec) for spec in specs]))

    # --- tracing and logging ---

    def traces(self, exchange: Exchange) -> None:
        """Show the trace settings of a model, or of all."""
        exchange.reply_json(self._services.trace_settings.shown(self._traced(exchange)))

    def set_traces(self, exchange: Exchange) -> None:
        """Change them."""
        model = self._traced(exchange)
        self._services.trace_settings.change(model, exchange.decoded(dict[str, Any]))
        self.traces(exchange)

    def _traced(self, exchange: Exchange) -> str | None:
        """Return the model that settings are about, which is served; None for all."""
        if not exchange.arguments:
            return None
        self._signature(exchange)
        return exchange.arguments[0]

    def log(self, exchange: Exchange) -> None:
        """Show what the gateway logs."""
        exchange.reply_json(log_settings())

    def set_log(self, exchange: Exchange) -> None:
        """Change it."""
        change_log(exchange.decoded(dict[str, Any]))
        self.log(exchange)

    # --- the model repository ---

    async def index(self, exchange: Exchange) -> None:
        """List the models that could be served."""
        wanted = exchange.decoded(IndexRequest)
        driver = self._driver
        repository = self._services.repository
        found = await index_of(repository, driver.catalog, driver.readiness, ready=wanted.ready)
        exchange.reply_json([each for each in found if self._sees(exchange, each.name)])

    async def load(self, exchange: Exchange) -> None:
        """Load a model."""
        await self._repository().load_as_told(exchange.arguments[0], exchange.body)
        exchange.reply_json({})

    async def unload(self, exchange: Exchange) -> None:
        """Unload a model."""
        parameters = exchange.decoded(Change).parameters
        await self._repository().unload(exchange.arguments[0], parameters)
        exchange.reply_json({})

    # --- inside ---

    def _repository(self) -> ModelRepository:
        if self._services.repository is None:
            raise Fault(
                501,
                "models are loaded and unloaded in a model repository only, and none is served; `mainspring "
                "compile FILE --name NAME` and `mainspring models add NAME` serve one of the store",
            )
        return self._services.repository

    def _sees(self, exchange: Exchange, model: str) -> bool:
        """Say whether a model may be listed for a client."""
        gate = self._driver.gate
        return not gate.closed or gate.may_see(from_header(exchange.header(b"authorization")), model)

    def _signature(self, exchange: Exchange) -> Signature:
        name, *version = exchange.arguments
        if (alone := self._driver.alone) is not None:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, alone)
        return self._driver.catalog.resolve(name, version_of(version[0]) if version else None)

    def in_task(self, handle: Callable[[Exchange], Coroutine[Any, Any, None]]) -> Handler:
        """Return a handler that runs one which waits."""

        async def run(exchange: Exchange) -> None:
            try:
                await handle(exchange)
            except Exception as error:
                reply_to_error(exchange, error)

        def begin(exchange: Exchange) -> None:
            task = asyncio.get_running_loop().create_task(run(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return begin
