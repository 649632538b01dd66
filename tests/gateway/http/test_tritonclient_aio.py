"""Unmodified `tritonclient.http.aio` against a live cluster: its connections, and what it gives up.

What the calls answer is what the blocking client gets (`test_tritonclient.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.test_tritonclient import X, tensor

aio = pytest.importorskip("tritonclient.http.aio")
utils = pytest.importorskip("tritonclient.utils")


def run(served: Served, test: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    async def with_client() -> None:
        async with aio.InferenceServerClient(served.host, **options) as client:
            await test(client)

    asyncio.run(with_client())


def test_many_at_once(served: Served) -> None:
    async def test(client: Any) -> None:
        results: list[Any] = await asyncio.gather(
            *(
                client.infer("double", [tensor("data", X + number, "FP32", binary=number % 2 == 0)])
                for number in range(100)
            ),
            return_exceptions=True,
        )
        # A gateway that got no processor meanwhile refuses some of so many.
        answered = [number for number, result in enumerate(results) if "overloaded" not in str(result)]
        assert answered
        for number in answered:
            assert (results[number].as_numpy("twice") == 2 * (X + number)).all()

    run(served, test)


def test_calls_of_each_method(real: Served) -> None:
    async def test(client: Any) -> None:
        assert await client.is_server_live()
        assert (await client.get_model_metadata("half"))["inputs"][0]["datatype"] == "BF16"
        assert len(await client.get_model_repository_index()) == 4
        with pytest.raises(utils.InferenceServerException, match="repository"):
            await client.load_model("image")
        result = await client.infer(
            "image", [tensor("data", X, "FP32")], request_compression_algorithm="gzip", request_id="a"
        )
        assert result.get_response()["id"] == "a"
        assert result.as_numpy("sum").shape == (2,)

    run(real, test)


def test_a_cancelled_request_is_cancelled_in_the_cluster(served: Served) -> None:
    cluster = served.cluster
    assert cluster is not None
    before = len(cluster.cancels)

    async def test(client: Any) -> None:
        arrived = len(cluster.arrivals)
        task = asyncio.ensure_future(client.infer("hold", [tensor("data", X, "FP32")]))
        while len(cluster.arrivals) == arrived:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: len(cluster.cancels) == before + 1)
        result = await client.infer("double", [tensor("data", X, "FP32")])
        assert (result.as_numpy("twice") == 2 * X).all()

    run(served, test)


def test_a_client_that_times_out_is_gone(served: Served) -> None:
    cluster = served.cluster
    assert cluster is not None
    before = len(cluster.cancels)

    async def test(client: Any) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await client.infer("hold", [tensor("data", np.zeros((1, 4), np.float32), "FP32")])

    run(served, test, conn_timeout=0.3)
    wait_until(lambda: len(cluster.cancels) == before + 1)
