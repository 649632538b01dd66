"""Sends traces to an OpenTelemetry collector: OTLP over HTTP, by OpenTelemetry's own SDK.

Spans wait in a bounded queue of the SDK's, and a thread of its own encodes and sends them: a collector that
is slow or gone costs spans and never a request. What else OpenTelemetry's environment variables say of the
exporter (headers, certificates, compression) and of the resource holds here too.
"""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from mainspring import extras
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.services import Services
from mainspring.gateway.tracing import Parent, Step, Trace, Tracing

_PATH = "/v1/traces"
_QUEUE_SPANS = 4_096
_BATCH_SPANS = 64
"""Sent at a time: encoding more would keep the interpreter's lock from the thread that serves."""
_DELAY_MS = 500
_TIMEOUT_S = 2.0
"""Seconds that the collector may take."""


class TracingMissing(RuntimeError):
    """Tracing is on and OpenTelemetry is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "trace_address of [gateway] turns tracing on, which needs OpenTelemetry: "
            f"{extras.command('tracing')}, or leave trace_address empty"
        )


class OtlpExporter:
    """The exporter that `start_tracing` returns."""

    def __init__(self, address: str, name: str) -> None:
        """``name`` is the gateway's. Raises `TracingMissing`, and OSError on an invalid address."""
        endpoint = _endpoint(address)
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise TracingMissing() from error
        self.address = endpoint
        self._trace: Any = trace
        own = {"service.name": "mainspring", "service.instance.id": name}
        # What is to be traced was decided already.
        self._provider: Any = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(own))
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint, timeout=_TIMEOUT_S),
                max_queue_size=_QUEUE_SPANS,
                schedule_delay_millis=_DELAY_MS,
                max_export_batch_size=_BATCH_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer("mainspring.gateway")

    def export(self, found: Trace) -> None:
        """Queue a trace's spans."""
        trace = self._trace
        context = None if found.parent is None else self._context(found.parent)
        whole = self._span(found.request, context, trace.SpanKind.SERVER)
        if found.error:
            whole.set_status(trace.Status(trace.StatusCode.ERROR, found.error))
        inside = trace.set_span_in_context(whole)
        for step in found.steps:
            self._span(step, inside, trace.SpanKind.INTERNAL).end(step.end_ns)
        whole.end(found.request.end_ns)

    def leave(self) -> None:
        """Do nothing: nobody connects."""

    async def close(self, grace_s: float) -> None:
        """Send what waits, within ``grace_s``."""
        # Of no pool: the process would wait for its end, however long a collector lets it hang.
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        until_s = asyncio.get_running_loop().time() + grace_s
        while thread.is_alive() and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(0.01)

    def _context(self, parent: Parent) -> Any:
        trace = self._trace
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        remote = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(trace.NonRecordingSpan(remote))

    def _span(self, step: Step, context: Any, kind: Any) -> Any:
        return self._tracer.start_span(
            step.name, context, kind=kind, attributes=step.attributes, start_time=step.start_ns
        )


def start_tracing(services: Services, config: GatewayConfig) -> OtlpExporter:
    """Trace requests from now on; raise `TracingMissing`, or OSError on an invalid address."""
    exporter = OtlpExporter(config.trace_address, config.name or "gateway")
    services.driver.core.observers.add(
        Tracing(config, services.trace_settings, exporter.export, services.driver.counts)
    )
    return exporter


def check_tracing(address: str) -> None:
    """Raise what `start_tracing` would of this address on this machine, with nothing started."""
    _endpoint(address)
    try:
        for needed in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
            if find_spec(needed) is None:
                raise TracingMissing()
    except ImportError as error:
        raise TracingMissing() from error


def _endpoint(address: str) -> str:
    """Return where to send traces for the address of a collector."""
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise OSError(
            f"trace_address {address!r} is not an address of an OpenTelemetry collector; it is such as "
            "http://127.0.0.1:4318, where it takes OTLP over HTTP"
        )
    return address if parts.path.strip("/") else address.rstrip("/") + _PATH
