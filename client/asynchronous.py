"""The client for asyncio: the same verbs as `Client`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from numpy.typing import ArrayLike

from mainspring.client.arrays import InferResult
from mainspring.client.client import DEFAULT_ADDRESS, Client
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ClusterStatus


class AsyncClient:
    """A client of one gateway for asyncio.

    ::

        async with AsyncClient("tcp://127.0.0.1:7400") as client:
            results = await asyncio.gather(*(client.infer("m", {"data": x}, slo_ms=50) for x in xs))

    A cancelled task cancels its request at the gateway. May be shared between event loops and threads;
    arguments and errors are those of `Client`.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        name: str = "",
        token: str | None = None,
        connect_timeout_s: float = 5.0,
        guard_s: float = 2.0,
        best_effort_timeout_s: float = 75.0,
    ) -> None:
        """Begin to connect to ``address``; arguments as for `Client`."""
        self._client = Client(
            address,
            name=name,
            token=token,
            connect_timeout_s=connect_timeout_s,
            guard_s=guard_s,
            best_effort_timeout_s=best_effort_timeout_s,
        )

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> InferResult:
        """Run ``model`` on ``inputs`` and return its outputs by name; see `Client.infer`."""
        call = self._client.submit(model, inputs, slo_ms, outputs, version, priority, traceparent)
        return await asyncio.wrap_future(call)

    async def models(self) -> tuple[ModelSpec, ...]:
        """Return the models that are served, by name."""
        return await asyncio.to_thread(self._client.models)

    async def status(self) -> ClusterStatus:
        """Return the cluster as the controller sees it."""
        return await asyncio.to_thread(self._client.status)

    async def add_model(self, spec: ModelSpec) -> None:
        """Have a model served; see `Client.add_model`."""
        await asyncio.to_thread(self._client.add_model, spec)

    async def remove_model(self, name: str) -> None:
        """Have a model served no more; see `Client.remove_model`."""
        await asyncio.to_thread(self._client.remove_model, name)

    async def close(self) -> None:
        """Close the connection; requests without a reply fail."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
