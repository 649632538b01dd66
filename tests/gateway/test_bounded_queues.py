"""Requests that a queue has no room for: refused at once over each protocol; other models are served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed, wait
from contextlib import ExitStack
from typing import NamedTuple

import grpc
import numpy as np
import pytest

from mainspring.client.client import Client
from mainspring.client.errors import Overloaded
from mainspring.client.result import InferResult
from mainspring.gateway.grpc.status import RETRY_METADATA
from mainspring.gateway.server import Addresses
from mainspring.scheduler.config import SchedulerConfig
from tests.gateway.fakes import serving, wait_until
from tests.gateway.grpc.tensors import encoded
from tests.gateway.http.raw import Peer, infer_body
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

X = np.ones((1, 4), np.float32)
SLOW_NS = 400_000_000
BOUND = 3
LONG_NS = 20_000_000_000
HORIZON_MS = 70_000.0
SHARE = 0.9


class Served(NamedTuple):
    addresses: Addresses
    client: Client


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One worker; ``bounded`` has a bound, and ``long`` takes so long that four of it are past the horizon.

    A batch of each takes as long as eight rows do, so requests of eight are executed one by one.
    """
    config = SchedulerConfig(
        max_queue_sizes={"bounded": BOUND}, best_effort_horizon_ms=HORIZON_MS, best_effort_share=SHARE
    )
    models = [emulated("bounded", SLOW_NS), emulated("long", LONG_NS), emulated("quick")]
    with ExitStack() as stack:
        controller = stack.enter_context(real_controller(models, scheduler=config))
        stack.enter_context(real_worker("one", controller))
        addresses = stack.enter_context(
            serving(controller, http_address="http://127.0.0.1:0", grpc_address="grpc://127.0.0.1:0")
        )
        client = stack.enter_context(Client(addresses.zeromq))
        wait_until(lambda: workers_ready(client, 1, 3), PATIENCE_S)
        for name in ("bounded", "quick"):
            client.infer(name, {"data": X}, slo_ms=30_000)
        yield Served(addresses, client)


def test_what_is_over_a_models_bound_is_refused_at_once_and_others_are_served(served: Served) -> None:
    client = served.client
    rows = np.ones((8, 4), np.float32)
    sent: dict[Future[InferResult], float] = {}
    for _ in range(BOUND + 6):
        began_s = time.monotonic()
        sent[client.submit("bounded", {"data": rows})] = began_s
    took_s, answered = [], 0
    others = [client.submit("quick", {"data": X}, slo_ms=20_000) for _ in range(5)]
    for future in as_completed(sent, PATIENCE_S):
        error = future.exception()
        if error is None:
            answered += 1
            continue
        assert isinstance(error, Overloaded)
        assert f"its bound (max_queue_size) is {BOUND}" in str(error)
        assert not answered, "a refusal waits for no answer"
        assert error.retry_after_s, "it says when to come again"
        assert error.retry_after_s <= (BOUND + 1) * SLOW_NS / 1e9 / SHARE
        took_s.append(time.monotonic() - sent[future])
    assert len(took_s) + answered == BOUND + 6
    assert answered in (BOUND, BOUND + 1, BOUND + 2), "those that wait, and those that run"
    # The quickest of them, for other processes of the machine may keep any of them.
    assert min(took_s) < 0.1
    assert all(each.result(PATIENCE_S)["sum"].shape == (1,) for each in others)


def test_a_status_says_the_bound(served: Served) -> None:
    bounds = {model.name: model.max_queue_size for model in served.client.status().models}
    assert bounds == {"bounded": BOUND, "long": None, "quick": None}


def filled(client: Client) -> list[Future[InferResult]]:
    """Send requests for ``long`` until three in a row are refused; return those that were."""
    rows = np.ones((8, 4), np.float32)
    refused: list[Future[InferResult]] = []
    row = 0
    for _ in range(20):
        future = client.submit("long", {"data": rows})
        wait([future], 1.0)
        row = row + 1 if future.done() else 0
        refused += [future] if future.done() else []
        if row == 3:
            return refused
    raise AssertionError("no queue is so long that one is refused")


def test_beyond_the_horizon_each_protocol_says_when_to_come_again(served: Served) -> None:
    errors = [each.exception() for each in filled(served.client)]
    with (
        Peer(served.addresses.http.removeprefix("http://")) as peer,
        grpc.insecure_channel(served.addresses.grpc.removeprefix("grpc://")) as channel,
    ):
        reply = peer.ask("POST", "/v2/models/long/infer", infer_body(rows=8))
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(encoded("long", np.ones((8, 4), np.float32)))
    longest_s = 8 * LONG_NS / 1e9
    assert (reply.status, reply.json["reason"]) == (503, "overloaded")
    assert "come again in" in reply.json["error"]
    assert 1 <= int(reply.headers["retry-after"]) <= longest_s
    told = {each.key: each.value for each in caught.value.trailing_metadata()}
    assert 1 <= int(told[RETRY_METADATA]) <= 1_000 * longest_s
    assert all(isinstance(each, Overloaded) and each.retry_after_s for each in errors)
