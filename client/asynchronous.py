"""The client for asyncio: the same verbs as `Client`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mainspring.client.catalog import Models
from mainspring.client.channel import PerProcess
from mainspring.client.client import Arguments, Client, delivered, no_types
from mainspring.client.deadlines import AnyDeadline, Deadline, deadline_of
from mainspring.client.errors import OfOneProcess
from mainspring.client.memory import MEMORY_BYTES
from mainspring.client.requests import MAX_UNREAD_BYTES, Call
from mainspring.client.result import InferResult
from mainspring.client.sequences import AsyncSequence, Places
from mainspring.messages.applications import ApplicationReport
from mainspring.messages.clients import BestItems, ServedGraph
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.learning import Observed
from mainspring.messages.model import ModelSpec
from mainspring.messages.status import ClusterStatus


class AsyncClient(OfOneProcess):
    """A client of a cluster for asyncio, by one of its gateways or several.

    ::

        async with AsyncClient("tcp://127.0.0.1:7400") as client:
            results = await asyncio.gather(*(client.infer("m", {"data": x}, slo_ms=50) for x in xs))

    A cancelled task cancels its request at the gateway. May be shared between event loops and threads;
    arguments and errors are those of `Client`.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        name: str = "",
        token: str | None = None,
        curve_key: str | None = None,
        connect_timeout_s: float = 5.0,
        guard_s: float = 2.0,
        best_effort_timeout_s: float | None = None,
        max_in_flight: int | None = None,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Begin to connect to ``address``; arguments as for `Client`."""
        self._deliveries = PerProcess(Delivery)
        self._client = Client(
            address,
            name=name,
            token=token,
            curve_key=curve_key,
            connect_timeout_s=connect_timeout_s,
            guard_s=guard_s,
            best_effort_timeout_s=best_effort_timeout_s,
            max_in_flight=max_in_flight,
            max_unread_bytes=max_unread_bytes,
            memory_bytes=memory_bytes,
        )

    @property
    def address(self) -> str:
        """Return its gateway's address, or those of all, as one text."""
        return self._client.address

    def __repr__(self) -> str:
        return f"Async{self._client!r}"

    @property
    def shares_memory(self) -> bool:
        """Return whether its gateway reads large inputs in this client's memory (`Client.shares_memory`)."""
        return self._client.shares_memory

    def allocate(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array that a gateway of this host reads as it is; see `Client.allocate`."""
        return self._client.allocate(shape, dtype)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
        *,
        slo: str | timedelta | None = None,
        deadline: AnyDeadline = None,
        at_least: float = 0.0,
        context: str = "",
    ) -> Coroutine[Any, Any, InferResult]:
        """Run ``model`` on ``inputs``; awaited, return its outputs by name; see `Client.infer`.

        The SLO counts from this call, not from when it is first awaited.
        """
        now_ns = monotonic_ns()
        told = (model, inputs, slo_ms, slo, outputs, version, priority, traceparent)
        return self.run(
            Arguments(now_ns, *told, deadline_of(now_ns, deadline), at_least=at_least, context=context)
        )

    def submit(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
        *,
        slo: str | timedelta | None = None,
        deadline: AnyDeadline = None,
        at_least: float = 0.0,
        context: str = "",
    ) -> Future[InferResult]:
        """Send a request for a caller that has no event loop, and return its result to come; see
        `Client.submit`."""
        told = (model, inputs, slo_ms, outputs, version, priority, traceparent)
        return self._client.submit(*told, slo=slo, deadline=deadline, at_least=at_least, context=context)

    def deadline(self, within: str | timedelta) -> Deadline:
        """Return a deadline that requests share; see `Client.deadline`.

        Tasks that begin within its block share it, too; ``async with`` is the same as ``with``.
        """
        return Deadline(self, within)

    def sequence(
        self, model: str, *, sequence_id: int | str | None = None, version: int | None = None
    ) -> AsyncSequence:
        """Return a sequence of requests for a model that keeps a state; see `Client.sequence`."""
        return AsyncSequence(self, Places(model, sequence_id, version))

    async def run(self, arguments: Arguments) -> InferResult:
        """Send a request and wait for its outcome."""
        client = self._client
        if client.lacks_types(arguments.model, arguments.inputs):
            patience_s = client.patience_s(arguments)
            try:
                client.learn_types(await asyncio.wait_for(self.models(), patience_s))
            except TimeoutError:
                raise no_types(self.address, patience_s) from None
        call = client.begin(arguments, awaited=True)
        try:
            result: InferResult = await self._deliveries.get().outcome(call)
        except BaseException:
            call.landed(monotonic_ns())
            raise
        return delivered(call, result)

    def patience_s(self, arguments: Arguments) -> float:
        """Return how long after its call a request is given up without an answer."""
        return self._client.patience_s(arguments)

    def end_sequence(self, places: Places) -> None:
        """Have the gateway drop a sequence, without waiting for that."""
        self._client.end_sequence(places)

    async def models(self) -> Models:
        """Return the models that are served, by name: ``(await client.models())["resnet50"]`` is one."""
        return Models(await self._deliveries.get().outcome(self._client.request_models()))

    async def status(self) -> ClusterStatus:
        """Return the cluster as the controller sees it."""
        return await asyncio.to_thread(self._client.status)

    async def add_model(self, spec: ModelSpec) -> None:
        """Have a model served; see `Client.add_model`."""
        await asyncio.to_thread(self._client.add_model, spec)

    async def remove_model(self, name: str) -> None:
        """Stop serving a model; see `Client.remove_model`."""
        await asyncio.to_thread(self._client.remove_model, name)

    async def add_graph(self, graph: GraphSpec | str, *, check: bool = False) -> None:
        """Serve a graph of models; see `Client.add_graph`."""
        await asyncio.to_thread(self._client.add_graph, graph, check=check)

    async def remove_graph(self, name: str) -> None:
        """Serve a graph no more; see `Client.remove_graph`."""
        await asyncio.to_thread(self._client.remove_graph, name)

    async def graphs(self) -> tuple[ServedGraph, ...]:
        """Return the graphs that are served; see `Client.graphs`."""
        return await asyncio.to_thread(self._client.graphs)

    async def observe(self, application: str, query_id: int | None, *given: Any, **named: Any) -> Observed:
        """Tell an application what came true; see `Client.observe`."""
        return await asyncio.to_thread(self._client.observe, application, query_id, *given, **named)

    async def top_k(
        self, application: str, items: Sequence[int] | None, k: int, *, context: str = ""
    ) -> BestItems:
        """Return the best items for a user; see `Client.top_k`."""
        return await asyncio.to_thread(self._client.top_k, application, items, k, context=context)

    async def forget(self, application: str, context: str) -> None:
        """Erase what an application has learnt of a context; see `Client.forget`."""
        await asyncio.to_thread(self._client.forget, application, context)

    async def applications(self) -> tuple[ApplicationReport, ...]:
        """Return what was learnt of applications; see `Client.applications`."""
        return await asyncio.to_thread(self._client.applications)

    async def set_max_queue_size(self, name: str, size: int | None) -> None:
        """Bound a model's queue; see `Client.set_max_queue_size`."""
        await asyncio.to_thread(self._client.set_max_queue_size, name, size)

    async def set_goodput_weight(self, name: str, weight: float | None) -> None:
        """Weigh a model's answers; see `Client.set_goodput_weight`."""
        await asyncio.to_thread(self._client.set_goodput_weight, name, weight)

    async def assign_model(self, name: str, workers: int, max_batch: int = 0, kind: str = "") -> None:
        """Give a model workers of its own; see `Client.assign_model`."""
        await asyncio.to_thread(self._client.assign_model, name, workers, max_batch, kind)

    async def scale_workers(self, kind: str, count: int, *, shard: int | None = None) -> None:
        """Have this many workers of a kind from now on; see `Client.scale_workers`."""
        await asyncio.to_thread(self._client.scale_workers, kind, count, shard=shard)

    async def close(self) -> None:
        """Close the connection; requests without a reply fail."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Delivery:
    """Passes outcomes from the client's thread to event loops, all that there are in one step of a loop.

    `asyncio.wrap_future` wakes the loop once for each future; a thousand outcomes at one time would each cost
    a system call and a callback, and delay one another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    async def outcome(self, call: Call) -> Any:
        """Wait for a call's outcome: return it, or raise its error. Cancelling the wait cancels the call."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        call.add_done_callback(lambda _: self._notify(loop, ended))
        try:
            await ended
        except asyncio.CancelledError:
            call.cancel()
            raise
        return call.result()

    def _notify(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        with self._lock:
            waiting = self._ended.setdefault(loop, [])
            waiting.append(ended)
            if len(waiting) > 1:
                return
        # A closed loop has no task left that waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._deliver, loop)
            return
        with self._lock:
            self._ended.pop(loop, None)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiting = self._ended.pop(loop, [])
        for ended in waiting:
            if not ended.done():
                ended.set_result(None)
