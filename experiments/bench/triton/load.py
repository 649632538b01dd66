"""One client for both servers: requests at given instants over gRPC, whatever became of those before.

Requests are encoded before the clock starts and answers are not decoded, so that the client takes little of
the machine that the servers share with it. In an open loop it goes before other programs, where it may: what
it sends late, or reads late, would be counted against the servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import uvloop
from grpc import aio

from mainspring.gateway.grpc.messages import ModelInferRequest

T = TypeVar("T")

METHOD = "/inference.GRPCInferenceService/ModelInfer"
CHANNELS = 4
"""Connections, which requests take turns on."""
PRIORITY = 20
"""Real-time, below that of Mainspring's own processes and above Triton's, which has none."""
_LEAD_S = 0.05
_SPIN_S = 0.3e-3
_REASON_CHARACTERS = 40
_DATATYPES = {"float32": "FP32", "int64": "INT64"}


class Outcome(msgspec.Struct):
    """Outcomes of the requests of one run."""

    latency_ms: list[float]
    codes: dict[str, int]
    late_ms: float
    reasons: dict[str, int] = {}
    refused_ms: list[float] = []
    begin_ns: int = 0

    def in_time(self, deadline_ms: float) -> int:
        """Return how many requests were answered by their deadline."""
        return sum(latency <= deadline_ms for latency in self.latency_ms)


def encode(model: str, tensors: Mapping[str, npt.NDArray[Any]], timeout_us: int | None = None) -> bytes:
    """Return a request for one model, with tensors of one of `_DATATYPES`."""
    message = ModelInferRequest(model_name=model)
    for name, tensor in tensors.items():
        message.inputs.add(name=name, datatype=_DATATYPES[tensor.dtype.name], shape=tensor.shape)
        message.raw_input_contents.append(tensor.tobytes())
    if timeout_us is not None:
        message.parameters["timeout"].int64_param = timeout_us
    return bytes(message.SerializeToString())


def poisson(rate_hz: float, duration_s: float, seed: int) -> npt.NDArray[np.float64]:
    """Return instants of Poisson arrivals, in seconds from the beginning."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1 / rate_hz, round(rate_hz * duration_s * 2) + 100)
    instants = np.cumsum(gaps)
    return instants[instants < duration_s]


def open_loop(address: str, requests: Sequence[bytes], instants: npt.NDArray[np.float64]) -> Outcome:
    """Send the requests, in turn and over again, at these instants; return when all are answered."""
    with before_others():
        return _run(_open_loop(address, requests, instants))


def closed_loop(address: str, requests: Sequence[bytes], clients: int, duration_s: float) -> float:
    """Keep so many requests in flight for so long; return the answers a second."""
    return _run(_closed_loop(address, requests, clients, duration_s))


def _run(work: Coroutine[Any, Any, T]) -> T:
    gc.collect()
    gc.disable()
    try:
        result: T = uvloop.run(work)
        return result
    finally:
        gc.enable()


@contextlib.contextmanager
def before_others() -> Iterator[None]:
    """Give this thread, and those that it starts, real-time priority, if that is allowed."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


async def _open_loop(address: str, requests: Sequence[bytes], instants: npt.NDArray[np.float64]) -> Outcome:
    calls, close = await _connect(address)
    latency = [float("inf")] * len(instants)
    behind: list[float] = []
    codes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    refused_ms: list[float] = []

    async def one(index: int, due: float) -> None:
        behind.append(time.perf_counter() - due)
        try:
            await calls[index % CHANNELS](requests[index % len(requests)])
            latency[index] = (time.perf_counter() - due) * 1e3
            codes["OK"] += 1
        except aio.AioRpcError as error:
            refused_ms.append((time.perf_counter() - due) * 1e3)
            codes[error.code().name] += 1
            reasons[str(error.details()).partition(":")[0][:_REASON_CHARACTERS]] += 1

    begin = time.perf_counter() + _LEAD_S
    tasks = []
    for index, instant in enumerate(instants):
        due = begin + instant
        while (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left if left > _SPIN_S else 0)
        tasks.append(asyncio.ensure_future(one(index, due)))
    await asyncio.gather(*tasks)
    await close()
    late_ms = float(np.percentile(behind, 99)) * 1e3
    return Outcome(latency, dict(codes), late_ms, dict(reasons), refused_ms, round(begin * 1e9))


async def _closed_loop(address: str, requests: Sequence[bytes], clients: int, duration_s: float) -> float:
    calls, close = await _connect(address)
    end = time.perf_counter() + duration_s
    numbers = itertools.count()
    answers = 0

    async def one(number: int) -> None:
        nonlocal answers
        while time.perf_counter() < end:
            await calls[number % CHANNELS](requests[next(numbers) % len(requests)])
            answers += time.perf_counter() < end

    await asyncio.gather(*map(one, range(clients)))
    await close()
    return answers / duration_s


async def _connect(address: str) -> tuple[list[Any], Any]:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    channels = [aio.insecure_channel(address, options) for _ in range(CHANNELS)]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    calls = [channel.unary_unary(METHOD) for channel in channels]

    async def close() -> None:
        await asyncio.gather(*(channel.close() for channel in channels))

    return calls, close
