"""Scrapes of a gateway, between a fake cluster and in a real one."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from mainspring import Client
from mainspring.cli.views.counters import COUNTERS
from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.grpc.messages import INFERENCE, message
from mainspring.gateway.metrics.server import EVENTS
from mainspring.messages.clients import ErrorReply, InferReply
from mainspring.messages.peers import AdminRequest
from tests.gateway.fakes import FakeCluster, fake_cluster, serving, wait_until
from tests.gateway.metrics.test_series import parsed
from tests.gateway.raw import Raw
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

GATEWAY = Path(__file__).resolve().parents[3] / "gateway"

ANY = "http://127.0.0.1:0"
Found = dict[str, dict[tuple[tuple[str, str], ...], float]]


def page(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"{address}{path}", timeout=30) as reply:
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4") or path == "/"
        return str(reply.read().decode())


def scrape(address: str) -> Found:
    """Return every sample of the page, read by prometheus-client's parser."""
    return parsed(page(address))


def of(found: Found, name: str, **labels: str) -> float:
    return found[name][tuple(sorted(labels.items()))]


class Counting(FakeCluster):
    """A fake cluster whose controller tells metrics, or not."""

    told = True
    asked = 0

    def _admin(self, message: AdminRequest) -> None:
        self.asked += message.metrics
        if self.told or not message.metrics:
            super()._admin(message)


def test_what_became_of_requests() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, metrics_address=ANY) as addresses,
        Raw(addresses.zeromq) as client,
    ):
        client.ready(cluster)
        for key, model in enumerate(("double", "double", "reject", "nowhere")):
            client.infer(key, model, slo_ns=30_000_000_000)
            assert isinstance(client.receive(), InferReply if model == "double" else ErrorReply)
        client.infer(9, "hold", slo_ns=30_000_000_000)
        wait_until(lambda: any(arrival.model == "hold" for arrival in cluster.arrivals))
        found = scrape(addresses.metrics)
        mine = {"model": "double", "version": "1"}
        assert of(found, "mainspring_requests_total", outcome="in_time", **mine) == 2
        assert of(found, "mainspring_request_duration_seconds_count", **mine) == 2
        assert of(found, "mainspring_slack_seconds_bucket", le="10.0", **mine) == 0
        assert of(found, "mainspring_cold_starts_total", **mine) == 2
        rejected = of(
            found,
            "mainspring_rejected_requests_total",
            model="reject",
            version="1",
            reason="deadline_unreachable",
        )
        assert rejected == 1
        assert of(found, "mainspring_rejected_requests_total", model="other", reason="unknown_model") == 1
        assert of(found, "mainspring_in_flight_requests") == 1
        text = page(addresses.metrics)
        assert 'nv_inference_count{model="double",version="1"} 2\n' in text
        assert 'nv_inference_pending_request_count{model="hold",version="1"} 1\n' in text
        assert "process_resident_memory_bytes" in found
        assert page(addresses.metrics, "/") == "The gateway's metrics are at /metrics.\n"


def test_counters_are_there_before_what_they_count() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, metrics_address=ANY) as addresses,
        Raw(addresses.zeromq) as client,
    ):
        client.ready(cluster)
        before = parsed(page(addresses.metrics))
        for key, model in enumerate(("double", "reject", "nowhere")):
            client.infer(key, model, slo_ns=30_000_000_000)
            client.receive()
        after = parsed(page(addresses.metrics))
    assert {dict(key)["model"] for key in before["mainspring_requests_total"]} == {*cluster.specs, "other"}
    for name, samples in after.items():
        if not name.startswith("process_"):
            assert set(samples) <= set(before[name]), f"{name} has series that were not there"
    grown = {
        key
        for key, value in after["mainspring_rejected_requests_total"].items()
        if value > before["mainspring_rejected_requests_total"][key]
    }
    assert {(dict(key)["model"], dict(key)["reason"]) for key in grown} == {
        ("reject", "deadline_unreachable"),
        ("other", "unknown_model"),
    }


def test_what_a_gateway_counts_is_known_before() -> None:
    found = set[str]()
    for path in GATEWAY.rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r"""\b(?:counts|_?count)[\[(]"(\w+)"[\])]""", text))
        found |= set(re.findall(r"""_(?:drop|close)\([^()\n]*"(sequences_\w+)\"""", text))
    found -= {"sequences", "sequence_bytes"}
    assert found >= {"submitted", "wrong_shard", "bad_framing_from_workers", "sequences_idle"}
    assert found <= {*EVENTS} <= {*COUNTERS}


def test_thousands_of_models_leave_the_page_short() -> None:
    models = tuple(f"model-{number}" for number in range(3_000))
    with (
        fake_cluster(models=models) as cluster,
        serving(cluster.address, metrics_address=ANY, metrics_models=3) as addresses,
        Raw(addresses.zeromq) as client,
    ):
        client.ready(cluster)
        assert shown_models(addresses.metrics) == {*models[:3], "other"}
        client.infer(1, "model-2999")
        client.receive()
        # One that is asked for takes the place of one that is not.
        assert shown_models(addresses.metrics) == {*models[:2], "model-2999", "other"}
        assert len(page(addresses.metrics).splitlines()) < 1_200


def shown_models(address: str) -> set[str]:
    return {dict(key)["model"] for key in scrape(address)["mainspring_requests_total"]}


def test_what_the_prediction_cache_took_is_measured() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, metrics_address="http://127.0.0.1:0", cache_models=("double",)) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: cluster.hellos)
        for number in (*range(20), *range(20), *range(20)):
            client.infer("double", {"data": np.full((8, 4), number, np.float32)})
        text = page(addresses.metrics)
        mine = '{model="double",version="1"}'
        assert f"nv_cache_num_hits_per_model{mine} 40\n" in text
        assert f"nv_cache_num_misses_per_model{mine} 20\n" in text
        for event in ("hit", "miss"):
            spent_us = int(
                text.partition(f"nv_cache_{event}_duration_per_model{mine} ")[2].partition("\n")[0]
            )
            assert spent_us > 0, "twenty are not looked for within a microsecond"


def test_a_page_without_the_controller_says_so_in_time_and_asks_no_faster() -> None:
    cluster = Counting()
    try:
        with (
            serving(cluster.address, metrics_address=ANY, metrics_timeout_ms=200.0) as addresses,
            Raw(addresses.zeromq) as client,
        ):
            client.ready(cluster)
            # The machine may be too busy for an answer in time, at first.
            wait_until(lambda: scrape(addresses.metrics).get("mainspring_models") == {(): 9})
            cluster.told = False
            asked = cluster.asked
            for _ in range(3):
                found = scrape(addresses.metrics)
                assert of(found, "mainspring_controller_up") == 0
                assert "mainspring_models" not in found
            assert cluster.asked == asked + 1, "its answer was still awaited"
    finally:
        cluster.stop()


def test_a_silent_controller_keeps_no_request_waiting() -> None:
    cluster = Counting()
    cluster.told = False
    try:
        with (
            serving(cluster.address, metrics_address=ANY, metrics_timeout_ms=1_000.0) as addresses,
            Raw(addresses.zeromq) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            client.ready(cluster)
            began_s = time.monotonic()
            scraping = pool.submit(scrape, addresses.metrics)
            wait_until(lambda: cluster.asked)
            for key in range(100):
                client.infer(key, "double")
                assert isinstance(client.receive(), InferReply)
            assert not scraping.done() or time.monotonic() - began_s > 1
            assert of(scraping.result(PATIENCE_S), "mainspring_controller_up") == 0
    finally:
        cluster.stop()


def test_without_a_controller_there_is_a_page() -> None:
    with serving("tcp://127.0.0.1:1", metrics_address=ANY) as addresses:
        found = scrape(addresses.metrics)
        assert (of(found, "mainspring_controller_up"), of(found, "mainspring_ready")) == (0, 0)


def test_scrapes_at_one_time_share_a_page() -> None:
    with fake_cluster() as cluster, serving(cluster.address, metrics_address=ANY) as addresses:
        with ThreadPoolExecutor(8) as pool:
            pages = list(pool.map(lambda _: scrape(addresses.metrics), range(32)))
        assert all("mainspring_ready" in each for each in pages)


@pytest.mark.parametrize("path", ["/metrics/", "/metrics?x=1"])
def test_other_ways_to_write_the_path(path: str) -> None:
    with fake_cluster() as cluster, serving(cluster.address, metrics_address=ANY) as addresses:
        assert "mainspring_ready" in page(addresses.metrics, path)


def test_there_is_nothing_else() -> None:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, metrics_address=ANY) as addresses,
        pytest.raises(urllib.error.HTTPError) as caught,
    ):
        page(addresses.metrics, "/v2/health/live")
    assert caught.value.code == 404


def test_what_a_protocol_refuses_by_itself_is_counted() -> None:
    def over_http(body: bytes) -> None:
        request = urllib.request.Request(f"{addresses.http}/v2/models/double/infer", body)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=30)

    with (
        fake_cluster() as cluster,
        serving(
            cluster.address, metrics_address=ANY, http_address=ANY, grpc_address="grpc://127.0.0.1:0"
        ) as (addresses),
        Raw(addresses.zeromq) as client,
    ):
        client.ready(cluster)
        over_http(b"no JSON")
        over_http(b'{"inputs": []}')
        wrong = message("inference.ModelInferRequest")(model_name="double")
        with grpc.insecure_channel(addresses.grpc.removeprefix("grpc://")) as channel:
            call = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
            with pytest.raises(grpc.RpcError):
                call(wrong.SerializeToString(), timeout=30)
        found = scrape(addresses.metrics)["mainspring_rejected_requests_total"]
        assert sum(found.values()) == 3
        assert {dict(own)["model"] for own, count in found.items() if count} == {"double"}


def test_a_request_without_the_token_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text("")
    with (
        fake_cluster() as cluster,
        serving(cluster.address, metrics_address=ANY, http_address=ANY, token_file=str(path)) as addresses,
    ):
        wait_until(lambda: of(scrape(addresses.metrics), "mainspring_ready"))
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{addresses.http}/v2/models/double/infer", b"{}", timeout=30)
        assert caught.value.code == 401
        found = scrape(addresses.metrics)
        mine = {"model": "double", "version": "1"}
        assert of(found, "mainspring_rejected_requests_total", reason="unauthenticated", **mine) == 1


def test_an_address_that_is_taken_ends_the_start() -> None:
    with fake_cluster() as cluster, serving(cluster.address, metrics_address=ANY) as addresses:
        config = GatewayConfig(address="tcp://127.0.0.1:*", metrics_address=addresses.metrics)
        with pytest.raises(OSError, match="can't serve metrics at"):
            server.run(config, threading.Event())


def test_a_real_cluster() -> None:
    models = [emulated("a"), emulated("b")]
    with (
        real_controller(models) as controller,
        real_worker("one", controller),
        serving(controller, metrics_address=ANY, http_address=ANY) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 2), 30)
        for _ in range(5):
            client.infer("a", {"data": X}, slo_ms=20_000)
        found: Found = {}

        def told() -> bool:
            found.clear()
            found.update(scrape(addresses.metrics))
            # The last result may still be on its way to the controller.
            return of(found, "mainspring_batched_rows_total", model="a", version="1") == 10

        wait_until(told, 30)
        mine = {"model": "a", "version": "1"}
        assert of(found, "mainspring_load_duration_seconds_count", **mine) == 1
        assert of(found, "mainspring_load_duration_seconds_sum", **mine) >= 0.001
        errors = found["mainspring_prediction_error_seconds_count"]
        assert errors[tuple(sorted({"action": "infer", **mine}.items()))] == 5
        assert of(found, "mainspring_batch_size_bucket", le="1.0", **mine) == 0
        assert of(found, "mainspring_batch_size_bucket", le="2.0", **mine) == 5
        assert of(found, "mainspring_pages_used", worker="one") == 1
        assert of(found, "mainspring_executor_busy_seconds_total", worker="one", executor="exec") >= 0.01
        assert of(found, "mainspring_actions_total", worker="one", action="infer", status="ok") == 5
        assert of(found, "mainspring_execution_duration_seconds_sum", **mine) >= 0.01
        assert of(found, "mainspring_cold_starts_total", **mine) == 1
        text = page(addresses.metrics)
        assert 'nv_inference_exec_count{model="a",version="1"} 5\n' in text
        for step in ("input", "infer", "output"):
            name = f"nv_inference_compute_{step}_duration_us"
            [line] = [line for line in text.splitlines() if line.startswith(f'{name}{{model="a"')]
            assert int(line.split()[-1]) > 0, f"the worker told nothing of {step}"
