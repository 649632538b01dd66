"""The endpoint that Prometheus scrapes: /metrics, on the gateway's HTTP server with an address of its own.

It is open to everyone who reaches the address, tokens or not: serve it where only those reach it who may know
which models there are and how busy they are.

The page is made in steps, so that no request waits for it longer than for another. Everything but the
controller's counts is read as the page is written; a histogram is whole in itself, and one family may be a
millisecond older than the next.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from time import monotonic_ns

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from mainspring.gateway.config import GatewayConfig, installed_version, milliseconds
from mainspring.gateway.core.admin import GetMetrics, MetricsReply, Reply
from mainspring.gateway.descriptors import METRICS_CONNECTIONS
from mainspring.gateway.http.exchange import Exchange
from mainspring.gateway.http.routes import Route, Routes
from mainspring.gateway.http.server import HttpServer, listening
from mainspring.gateway.metrics.applications import applications
from mainspring.gateway.metrics.families import (
    Labelled,
    as_triton,
    by_model,
    cluster,
    graph_steps,
    model_labels,
    sequences,
)
from mainspring.gateway.metrics.series import CONTENT_TYPE, Series, family, labels
from mainspring.gateway.services import Services
from mainspring.messages.applications import ApplicationReport
from mainspring.messages.metrics import ClusterMetrics
from mainspring.telemetry.bounded import BoundedLabels, model_key

STEP_CHARACTERS = 16_384
"""Characters of text per turn of the loop: about two hundred lines, a tenth of a millisecond."""
EVENTS = (
    *("abandoned", "access_log_lines_dropped", "answered", "bad_dispatches", "bad_framing_from_controller"),
    *("bad_framing_from_workers", "bad_messages_from_clients", "bad_messages_from_controller"),
    *("bad_messages_from_workers", "bad_models", "bad_outputs", "bad_shard_maps", "bad_worker_addresses"),
    *("cache_dropped", "cache_evicted", "cache_hits", "cache_misses", "cache_stored", "feedback_duplicate"),
    *("feedback_joined", "feedback_late", "feedback_unknown", "front_end_failures", "handshakes_refused"),
    *("late_admin_replies", "late_outputs", "late_rejections", "old_shard_maps", "policy_failures"),
    *("protocol_mismatch", "refused", "refused_by_controller", "replies_to_clients_that_left"),
    *("replies_to_slow_readers", "resubmitted", "sequences_begun", "sequences_dropped", "sequences_ended"),
    *("sequences_idle", "submitted", "traces_left_out", "unexpected_outputs", "unknown_clients"),
    *("unsent_to_controller", "unsent_to_workers", "withdrawn_inputs", "worker_names_taken_twice"),
    "wrong_shard",
)
"""Events that a gateway counts, shown from zero on, so that the first one is seen as an increase."""
_NONE = dict.fromkeys(EVENTS, 0)
STEP_REQUESTS = 1_000
"""Requests in flight that are counted between two turns."""


class MetricsPage:
    """Makes pages; several scrapes at one time share one question to the controller."""

    def __init__(self, services: Services, timeout_ns: int) -> None:
        """``timeout_ns``: how long the controller may take."""
        assert services.statistics.labels is not None, "nobody counts for the metrics without metrics_address"
        self._services = services
        self._labels: BoundedLabels[Series] = services.statistics.labels
        self._timeout_s = timeout_ns / 1e9
        self._asked: asyncio.Task[Reply] | None = None
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._version = labels(version=installed_version())

    async def make(self) -> bytes:
        """Return the page as text in UTF-8."""
        metrics = await self._ask()
        self._services.statistics.rank(monotonic_ns())
        parts: list[str] = []
        waiting = 0
        for piece in self._pieces(metrics):
            parts.append(piece)
            waiting += len(piece)
            if not piece or waiting >= STEP_CHARACTERS:
                waiting = 0
                await asyncio.sleep(0)
        return "".join(parts).encode()

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._asked is not None:
            self._asked.cancel()

    async def _ask(self) -> ClusterMetrics | None:
        """Return the controller's counts; None if it is silent for too long, or there is none."""
        if self._asked is None or self._asked.done():
            # One that is late is waited for again: the controller is not asked the more the slower it is.
            self._asked = asyncio.create_task(self._services.ask(GetMetrics(self._services.next_key())))
        done, _ = await asyncio.wait({self._asked}, timeout=self._timeout_s)
        if not done or self._asked.cancelled():
            return None
        reply = self._asked.result()
        return reply.metrics if isinstance(reply, MetricsReply) else None

    def _pieces(self, metrics: ClusterMetrics | None) -> Iterator[str]:
        """Yield the page's text; an empty piece after work without any."""
        yield from self._gateway(metrics is not None)
        shown = [(model_labels(key), series) for key, series in self._labels.shown()]
        yield from by_model(shown)
        yield from graph_steps(shown)
        yield from applications(self._applications())
        yield from self._sequences(shown)
        pending: Counter[str] = Counter()
        yield from self._count_pending(shown, pending)
        yield from as_triton(shown, pending)
        if metrics is not None:
            yield from cluster(metrics)
        yield generate_latest(self._process).decode()

    def _applications(self) -> list[ApplicationReport]:
        """Return the applications, of very many the first by name."""
        found = self._services.driver.catalog.graphs.reports()
        return [*itertools.islice(found, self._services.driver.config.metrics_models)]

    def _gateway(self, controller_up: bool) -> Iterator[str]:
        driver = self._services.driver
        gauges: tuple[tuple[str, str, float], ...] = (
            (
                "mainspring_controller_up",
                "1 if the controller answered this scrape; if 0, what it counts is missing here.",
                int(controller_up),
            ),
            (
                "mainspring_ready",
                "1 while the gateway is ready, as its health checks say, which have the reason.",
                int(not driver.readiness.server()),
            ),
            ("mainspring_in_flight_requests", "Requests without an answer.", driver.core.in_flight),
            ("mainspring_cache_bytes", "Bytes of outputs kept for equal requests.", driver.cache.bytes),
            ("mainspring_sequences", "Sequences that have a state here.", len(driver.core.sequences)),
            (
                "mainspring_sequence_bytes",
                "Bytes that are set aside for their states.",
                driver.core.sequences.bytes,
            ),
        )
        yield from family("mainspring_build_info", "gauge", "Always 1.", [(self._version, 1)])
        for name, meaning, value in gauges:
            yield from family(name, "gauge", meaning, [("", value)])
        if len(driver.shards) > 1:
            yield from self._shards()
        events = driver.all_counts()
        yield from family(
            "mainspring_gateway_events_total",
            "counter",
            "What happened at the gateway, by the names of `mainspring status`.",
            [(labels(event=event), count) for event, count in sorted(({**_NONE, **events}).items())],
        )

    def _shards(self) -> Iterator[str]:
        """Yield what is known of several controllers."""
        driver = self._services.driver
        shown = [(labels(shard=str(each.number)), each) for each in driver.shards]
        parts = driver.told.parts
        for name, meaning, values in (
            (
                "mainspring_shard_up",
                "1 while the gateway has a session with this one of several controllers.",
                [(own, int(each.session.welcomed)) for own, each in shown],
            ),
            (
                "mainspring_shard_models",
                "Models that it has; one that moves is in two shards for a moment.",
                [(own, len(parts[each.number].signatures)) for own, each in shown],
            ),
            (
                "mainspring_shard_workers",
                "Workers that it has.",
                [(own, len(parts[each.number].workers)) for own, each in shown],
            ),
            (
                "mainspring_shard_map_version",
                "Of the map that says which shard has which model; gateways of one cluster have the same.",
                [("", driver.told.map.version)],
            ),
        ):
            yield from family(name, "gauge", meaning, values)

    def _sequences(self, shown: Labelled) -> Iterator[str]:
        """Yield what became of sequences, under the labels shown."""
        own, others = {each for each, _ in shown}, shown[-1][0]
        numbers: dict[str, Counter[str]] = {}
        for signature in self._services.driver.catalog.signatures.values():
            if signature.spec.sequencing is not None:
                counted = model_labels(model_key(signature.spec))
                numbers.setdefault(counted if counted in own else others, Counter())
        for each in self._services.driver.core.sequences.models.values():
            counted = model_labels(model_key(each.spec))
            numbers.setdefault(counted if counted in own else others, Counter()).update(each.numbers)
        yield from sequences(numbers)

    def _count_pending(self, shown: Labelled, pending: Counter[str]) -> Iterator[str]:
        """Count requests in flight under the labels shown."""
        others = shown[-1][0]
        own = {each for each, _ in shown}
        names: dict[str, str] = {}
        requests = self._services.driver.core.requests()
        for start in range(0, len(requests), STEP_REQUESTS):
            for request in requests[start : start + STEP_REQUESTS]:
                accepted = request.accepted
                counted = names.get(accepted.model)
                if counted is None:
                    counted = model_labels(model_key(accepted.signature.spec))
                    counted = names[accepted.model] = counted if counted in own else others
                pending[counted] += 1
            yield ""


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
