"""Triton's asyncio client against a whole cluster of processes: many calls at once, cancellation and streams.

What the calls answer is what the blocking client gets (`test_live.py`): the server can't tell them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

Test = Callable[[InferenceServerClient], Awaitable[None]]


def inputs(rows: int = 2) -> list[InferInput]:
    tensor = InferInput("data", [rows, 1000], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, 1000), np.float32))
    return [tensor]


@pytest.fixture
def run(live: str) -> Callable[[Test], None]:
    """Return a function that runs a coroutine with a client."""

    async def with_client(test: Test) -> None:
        async with InferenceServerClient(live) as client:
            await asyncio.wait_for(test(client), 60)

    return lambda test: asyncio.run(with_client(test))


async def code_of(call: Awaitable[Any]) -> str:
    """Return the code that a call ends with."""
    with pytest.raises(InferenceServerException) as caught:
        await call
    return str(caught.value.status()).removeprefix("StatusCode.")


def test_inferences_side_by_side(run: Callable[[Test], None]) -> None:
    async def test(client: InferenceServerClient) -> None:
        calls = [
            client.infer("quick", inputs(), request_id=str(number), timeout=20_000_000)
            for number in range(40)
        ]
        results = await asyncio.gather(*calls)
        assert [each.get_response().id for each in results] == [str(number) for number in range(40)]
        assert all(each.as_numpy("output").shape == (2, 1000) for each in results)
        for algorithm in ("gzip", "deflate"):
            assert await client.infer("quick", inputs(), compression_algorithm=algorithm)

    run(test)


def test_deadlines_and_cancellation(run: Callable[[Test], None]) -> None:
    async def test(client: InferenceServerClient) -> None:
        assert await code_of(client.infer("slow", inputs(), timeout=20_000)) == "DEADLINE_EXCEEDED"
        assert await code_of(client.infer("slow", inputs(), client_timeout=0.02)) == "DEADLINE_EXCEEDED"
        for _ in range(50):
            call = asyncio.create_task(client.infer("slow", inputs()))
            await asyncio.sleep(0.01)
            if call.cancel():
                break
            # The machine was so busy that it was answered already.
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await client.infer("quick", inputs())

    run(test)


def test_a_stream(run: Callable[[Test], None]) -> None:
    async def asked() -> AsyncIterator[dict[str, Any]]:
        for number in range(20):
            yield {
                "model_name": "quick",
                "inputs": inputs(),
                "request_id": str(number),
                "timeout": 20_000_000,
            }
        yield {"model_name": "nothing", "inputs": inputs(), "request_id": "unknown"}

    async def test(client: InferenceServerClient) -> None:
        results: list[Any] = []
        errors: list[Any] = []
        async for result, error in client.stream_infer(asked(), stream_timeout=50):
            (errors if error else results).append(error or result)
        assert {each.get_response().id for each in results} == set(map(str, range(20)))
        assert ["unknown_model" in error.message() for error in errors] == [True]

    run(test)


def test_a_cancelled_stream(run: Callable[[Test], None]) -> None:
    async def asked() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "quick", "inputs": inputs(), "request_id": "one"}
        await asyncio.Event().wait()

    async def test(client: InferenceServerClient) -> None:
        stream = client.stream_infer(asked())
        result, error = await anext(aiter(stream))
        assert error is None
        assert result.get_response().id == "one"
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(aiter(stream))
        assert await client.infer("quick", inputs())

    run(test)
