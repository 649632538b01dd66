"""Unmodified `tritonclient.http.aio` against a live cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.test_tritonclient import X, tensor

http = pytest.importorskip("tritonclient.http")
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


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer_with_options(served: Served, compression: str | None) -> None:
    async def test(client: Any) -> None:
        result = await client.infer(
            "double",
            [tensor("data", X, "FP32")],
            model_version="1",
            outputs=[http.InferRequestedOutput("sum", binary_data=False)],
            request_id="a",
            timeout=5_000_000,
            request_compression_algorithm=compression,
            response_compression_algorithm=compression,
        )
        assert result.get_response()["id"] == "a"
        assert (result.as_numpy("sum") == X.sum(axis=1)).all()

    run(served, test)


def test_everything_but_inference(real: Served) -> None:
    async def test(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("image", "1")
        assert not await client.is_model_ready("nothing")
        assert (await client.get_server_metadata())["name"] == "mainspring"
        assert (await client.get_model_metadata("half"))["inputs"][0]["datatype"] == "BF16"
        assert (await client.get_model_config("half"))["input"][0]["data_type"] == "TYPE_BF16"
        assert len(await client.get_model_repository_index()) == 4
        assert len((await client.get_inference_statistics())["model_stats"]) == 4
        assert (await client.get_inference_statistics("image", "1"))["model_stats"][0]["name"] == "image"
        shown = await client.get_trace_settings()
        assert await client.update_trace_settings(settings={}) == shown
        assert await client.update_log_settings({}) == await client.get_log_settings()
        assert await client.get_system_shared_memory_status() == []
        assert await client.get_cuda_shared_memory_status() == []
        await client.unregister_system_shared_memory()
        await client.unregister_cuda_shared_memory()
        for change in (client.load_model, client.unload_model):
            with pytest.raises(utils.InferenceServerException, match="repository"):
                await change("image")
        with pytest.raises(utils.InferenceServerException, match=r"deadline_unreachable|timed_out"):
            await client.infer("image", [tensor("data", X, "FP32")], timeout=100)
        result = await client.infer("image", [tensor("data", X, "FP32")])
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
