"""Outputs that come behind their deadline: who gets them, and who is told so instead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from mainspring.client.client import Client
from mainspring.gateway.server import Addresses
from tests.gateway.fakes import FakeCluster, fake_cluster, serving, wait_until
from tests.gateway.grpc.tensors import inputs
from tests.gateway.http.raw import Peer, infer_body

X = np.arange(4, dtype=np.float32).reshape(1, 4)
SLO_MS = 100


class Served(NamedTuple):
    cluster: FakeCluster
    addresses: Addresses

    def answer_late(self) -> threading.Thread:
        """Have the next request for ``hold`` answered behind its deadline, and long before its grace ends."""

        def run() -> None:
            wait_until(lambda: self.cluster.arrivals)
            time.sleep(2 * SLO_MS / 1e3)
            request_id = self.cluster.arrivals[-1].request_id
            self.cluster.do(lambda: self.cluster.dispatch(request_id, "hold"))

        self.cluster.arrivals.clear()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with ExitStack() as stack:
        cluster = stack.enter_context(fake_cluster())
        options = {"http_address": "http://127.0.0.1:0", "grpc_address": "grpc://127.0.0.1:0"}
        addresses = stack.enter_context(serving(cluster.address, grace_ms=60_000.0, **options))
        with Client(addresses.zeromq) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        yield Served(cluster, addresses)


def test_over_http_they_are_refused_as_timed_out(served: Served) -> None:
    thread = served.answer_late()
    with Peer(served.addresses.http.removeprefix("http://")) as peer:
        reply = peer.ask("POST", "/v2/models/hold/infer", infer_body(parameters={"slo_ms": SLO_MS}))
        assert (reply.status, reply.json["reason"]) == (503, "timed_out")
        assert "after the deadline" in reply.json["error"]
    thread.join()


@pytest.mark.parametrize("streams", [False, True])
def test_over_grpc_they_are_refused_as_timed_out(served: Served, streams: bool) -> None:
    thread = served.answer_late()
    with InferenceServerClient(served.addresses.grpc.removeprefix("grpc://")) as client:
        if streams:
            found: list[InferenceServerException] = []
            client.start_stream(lambda result, error: found.append(error))
            client.async_stream_infer("hold", inputs(X), timeout=SLO_MS * 1_000)
            wait_until(lambda: found)
            assert "timed_out: no outputs came" in found[0].message()
        else:
            with pytest.raises(InferenceServerException, match="after the deadline") as caught:
                client.infer("hold", inputs(X), timeout=SLO_MS * 1_000)
            assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    thread.join()


def test_over_zeromq_they_come_with_how_late_they_are(served: Served) -> None:
    thread = served.answer_late()
    with Client(served.addresses.zeromq) as client:
        result = client.infer("hold", {"data": X}, slo_ms=SLO_MS)
        assert result.timing.left_ns is not None
        assert result.timing.left_ns < 0
    thread.join()


def test_best_effort_is_never_late(served: Served) -> None:
    thread = served.answer_late()
    with Peer(served.addresses.http.removeprefix("http://")) as peer:
        assert peer.ask("POST", "/v2/models/hold/infer", infer_body()).status == 200
    thread.join()
