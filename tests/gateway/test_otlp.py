"""Spans of a real request at a collector that the test plays; OTLP over HTTP, decoded by its own protobuf."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from mainspring import Client, extras
from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.grpc.messages import INFERENCE, message
from mainspring.gateway.otlp import TracingMissing
from mainspring.messages.clients import ErrorReply, InferReply
from tests.gateway.fakes import fake_cluster, serving, wait_until
from tests.gateway.raw import Raw
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

pytest.importorskip("opentelemetry.proto", reason="OpenTelemetry is not installed: pip install -e .[tracing]")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Takes spans; ``hang`` keeps it from answering."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()
        self.hang = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
                if collector.hang.is_set():
                    collector.hang.wait(60)
                    return
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            own = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(own["service.name"])
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        thread.join(PATIENCE_S)


def test_a_request_is_traced_under_its_clients_span() -> None:
    with (
        collecting() as collector,
        fake_cluster() as cluster,
        serving(cluster.address, trace_address=collector.address, trace_sample_ratio=1e-9) as addresses,
        Raw(addresses.zeromq) as client,
    ):
        client.ready(cluster)
        client.infer(1, "double", traceparent=PARENT)
        assert isinstance(client.receive(), InferReply)
        client.infer(2, "double")
        assert isinstance(client.receive(), InferReply)
        client.infer(3, "reject", traceparent=PARENT)
        assert isinstance(client.receive(), ErrorReply)
        wait_until(lambda: len(collector.spans) >= 7, 30)
    assert addresses.trace == f"{collector.address}/v1/traces"
    assert (collector.paths, collector.services) == ({"/v1/traces"}, {"mainspring"})
    assert len(collector.spans) == 7, "the request without a parent was left to chance, which is slight"
    assert {span.trace_id.hex() for span in collector.spans} == {PARENT[3:35]}
    whole = [span for span in collector.spans if span.name == "gateway"]
    assert [span.parent_span_id.hex() for span in whole] == [PARENT[36:52]] * 2
    answered, refused = sorted(whole, key=lambda span: span.status.code)
    assert refused.status.message == "deadline_unreachable"
    steps = [span for span in collector.spans if span.parent_span_id == answered.span_id]
    assert [span.name for span in steps] == ["queue", "input", "exec", "output"]
    for step in steps:
        assert answered.start_time_unix_nano <= step.start_time_unix_nano
        assert step.end_time_unix_nano <= answered.end_time_unix_nano
    attributes = {each.key: each.value for each in answered.attributes}
    assert attributes["mainspring.model"].string_value == "double"


def test_every_protocol_passes_the_clients_span_on_and_a_cold_start_shows_its_load() -> None:
    with (
        collecting() as collector,
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller),
        serving(
            controller,
            trace_address=collector.address,
            trace_sample_ratio=1e-9,
            http_address="http://127.0.0.1:0",
            grpc_address="grpc://127.0.0.1:0",
        ) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), 30)
        client.infer("a", {"data": X}, slo_ms=20_000, traceparent=parent(1))
        over_http(addresses.http, parent(2))
        over_grpc(addresses.grpc, parent(3))
        wait_until(lambda: len([span for span in collector.spans if span.name == "gateway"]) == 3, 30)
        wait_until(lambda: len(collector.spans) == 3 * 5 + 1, 30)
    traces: dict[str, list[str]] = {}
    for span in sorted(collector.spans, key=lambda span: int(span.start_time_unix_nano)):
        traces.setdefault(span.trace_id.hex(), []).append(span.name)
    assert {trace: sorted(names) for trace, names in traces.items()} == {
        parent(1)[3:35]: ["exec", "gateway", "input", "load", "output", "queue"],
        parent(2)[3:35]: ["exec", "gateway", "input", "output", "queue"],
        parent(3)[3:35]: ["exec", "gateway", "input", "output", "queue"],
    }
    by_name = {span.name: span for span in collector.spans if span.trace_id.hex() == parent(1)[3:35]}
    load_ns = by_name["load"].end_time_unix_nano - by_name["load"].start_time_unix_nano
    assert load_ns >= 1_000_000, "the emulated LOAD takes a millisecond"
    assert by_name["load"].end_time_unix_nano <= by_name["exec"].start_time_unix_nano
    assert by_name["exec"].end_time_unix_nano - by_name["exec"].start_time_unix_nano >= 2_000_000


def parent(number: int) -> str:
    return f"00-{number:032x}-b7ad6b7169203331-01"


def over_http(address: str, traceparent: str) -> None:
    tensor = {"name": "data", "datatype": "FP32", "shape": [2, 4], "data": X.ravel().tolist()}
    request = urllib.request.Request(
        f"{address}/v2/models/a/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"content-type": "application/json", "traceparent": traceparent},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def over_grpc(address: str, traceparent: str) -> None:
    tensor = {"name": "data", "datatype": "FP32", "shape": [2, 4]}
    request = message("inference.ModelInferRequest")(
        model_name="a", inputs=[tensor], raw_input_contents=[X.tobytes()]
    )
    with grpc.insecure_channel(address.removeprefix("grpc://")) as channel:
        call = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
        call(request.SerializeToString(), timeout=30, metadata=(("traceparent", traceparent),))


def test_a_collector_that_hangs_or_is_gone_delays_neither_requests_nor_the_end() -> None:
    with (
        collecting() as collector,
        fake_cluster() as cluster,
        serving(cluster.address, trace_address=collector.address, trace_sample_ratio=1.0) as addresses,
        Raw(addresses.zeromq) as client,
    ):
        client.ready(cluster)
        collector.hang.set()
        for key in range(200):
            client.infer(key, "double", slo_ns=60_000_000_000)
        assert all(isinstance(client.receive(), InferReply) for _ in range(200))
        wait_until(lambda: collector.spans, 30)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:4318", "127.0.0.1", "http://", "http://h:0", "http://h:x"]
)
def test_an_address_that_is_none_ends_the_start(address: str) -> None:
    config = GatewayConfig(address="tcp://127.0.0.1:*", trace_address=address)
    with pytest.raises(OSError, match=r"trace_address .* is not an address of an OpenTelemetry collector"):
        server.run(config, threading.Event())


def test_tracing_without_opentelemetry_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    config = GatewayConfig(address="tcp://127.0.0.1:*", trace_address="http://127.0.0.1:4318")
    with pytest.raises(TracingMissing, match=re.escape(extras.command("tracing"))):
        server.run(config, threading.Event())


def test_nothing_of_opentelemetry_is_imported_while_tracing_is_off() -> None:
    program = (
        "import sys, threading\n"
        "from mainspring.gateway import server\n"
        "from mainspring.gateway.config import GatewayConfig\n"
        "stop = threading.Event()\n"
        "config = GatewayConfig(address='tcp://127.0.0.1:*', http_address='http://127.0.0.1:0')\n"
        "server.run(config, stop, lambda _: stop.set())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
