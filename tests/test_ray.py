"""Handles for models within Ray Serve, against a gateway with a fake cluster."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

import mainspring
from mainspring.ray import Handle, handle
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, wait_until
from tests.patience import PATIENCE_S

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def address(cluster: FakeCluster) -> Iterator[str]:
    with gateway(cluster.address) as address:
        with mainspring.Client(address) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        yield address


def test_a_response_is_awaited_or_waited_for(address: str) -> None:
    double = handle("double", slo="20s", address=address)

    async def ask() -> list[mainspring.InferResult]:
        lists = double.remote({"data": X.tolist()})
        return [await double.remote({"data": X}), await lists]

    for result in (*asyncio.run(ask()), double.remote({"data": X}).result(PATIENCE_S)):
        assert np.array_equal(result["twice"], 2 * X)
        assert result["twice"].dtype == np.float32
        assert result.timing.slo_ns == 20_000_000_000


def test_requests_are_sent_before_their_responses_are_awaited(address: str, cluster: FakeCluster) -> None:
    async def ask() -> None:
        responses = [handle("hold", address=address).remote({"data": X}) for _ in range(3)]
        before = len(cluster.cancels)
        while sum(arrival.model == "hold" for arrival in cluster.arrivals) < 3:
            await asyncio.sleep(0.01)
        for response in responses:
            response.cancel()
            with pytest.raises(asyncio.CancelledError):
                await response
        while len(cluster.cancels) < before + 3:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_S))


def test_errors_say_why(address: str) -> None:
    told = handle("reject", slo_ms=50, address=address)
    with pytest.raises(mainspring.DeadlineUnreachable, match="too soon"):
        told.remote({"data": X}).result(PATIENCE_S)

    async def ask(wrong: Handle, **inputs: np.ndarray) -> None:
        await wrong.remote(inputs)

    with pytest.raises(mainspring.DeadlineError):
        asyncio.run(ask(told, data=X))
    with pytest.raises(mainspring.UnknownModel, match="doubel"):
        asyncio.run(ask(handle("doubel", address=address), data=X))
    with pytest.raises(mainspring.InvalidInput, match="dada"):
        asyncio.run(ask(handle("double", address=address), dada=X))


def test_an_event_loop_is_not_blocked(address: str) -> None:
    async def ask() -> None:
        response = handle("double", address=address).remote({"data": X})
        with pytest.raises(RuntimeError, match="await it instead"):
            response.result()
        await response

    asyncio.run(ask())


def test_options_replace_what_they_name() -> None:
    first = handle("double", slo_ms=100, priority=3, token="secret")
    other = first.options(slo="50ms", outputs=["sum"])
    assert (other.slo_ns, other.outputs, other.priority) == (50_000_000, ("sum",), 3)
    assert (first.slo_ns, first.outputs) == (100_000_000, None)
    assert pickle.loads(pickle.dumps(other)) == other
    assert "secret" not in repr(other)


def test_a_handle_goes_where_its_process_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = pickle.loads(pickle.dumps(handle("double", slo_ms=20_000)))
    monkeypatch.setenv("MAINSPRING_ADDRESS", address)
    assert np.array_equal(copy.remote({"data": X}).result(PATIENCE_S)["sum"], X.sum(axis=1))


def test_what_is_wrong_is_said_where_the_handle_is_made() -> None:
    with pytest.raises(mainspring.InvalidSlo):
        handle("double", slo="fast")
    with pytest.raises(TypeError, match="pass one of them"):
        handle("double", slo="1s", slo_ms=5)
    with pytest.raises(TypeError, match="pass a list of names"):
        handle("double", outputs="sum")
    with pytest.raises(TypeError, match="pass its name"):
        handle(3)  # type: ignore[arg-type]
