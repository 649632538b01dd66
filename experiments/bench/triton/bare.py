"""The least that serves the same calls from one core: grpcio, a queue by deadline, ONNX Runtime.

It reads a call as the gateway does, cuts the tensor out of the message uncopied, keeps what waits in the
order of deadlines, refuses what can't be in time by the median of the last executions, and executes one
request at a time in a thread below the one that reads, as a worker does that shares its core. It checks
nothing, knows one model, and tells nobody. What it reaches is what grpcio leaves of a core:
``python -m mainspring.experiments.bench.triton.bare MODEL.onnx PORT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import onnxruntime
import typer
import uvloop
from grpc import aio

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.foreign import Unavailable
from mainspring.gateway.grpc.messages import INFERENCE, ModelInferResponse
from mainspring.gateway.grpc.requests import parse

START_S = 30.0
REMEMBERED = 10
"""Executions whose median is expected of the next."""
MARGIN_NS = 1_000_000
"""From the end of an execution to the client."""
READ_PRIORITY, EXEC_PRIORITY = 30, 25
"""Of the threads, where that is allowed: those of a gateway and of an EXEC that share a core."""
DTYPES: dict[str, Any] = {"FP32": np.float32, "INT64": np.int64}


class Bare:
    """The server; one event loop calls it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._waiting: list[tuple[int, int, dict[str, Any], asyncio.Future[Any]]] = []
        self._come = asyncio.Event()
        self._count = 0
        self._took_ns: deque[int] = deque(maxlen=REMEMBERED)
        self._thread = ThreadPoolExecutor(1, initializer=lambda: prioritise(EXEC_PRIORITY))

    async def infer(self, _incoming: AsyncIterator[bytes], context: Any) -> bytes:
        """Answer one call, or refuse it."""
        arrived_ns = time.monotonic_ns()
        message, raw = parse(await context.read())
        timeout = message.parameters["timeout"].int64_param * 1000 if message.parameters else 0
        deadline_ns = arrived_ns + timeout if timeout else 1 << 62
        tensors = {
            each.name: np.frombuffer(data, DTYPES[each.datatype]).reshape(tuple(each.shape))
            for each, data in zip(message.inputs, raw, strict=True)
        }
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waiting, (deadline_ns, self._count, tensors, done))
        self._come.set()
        found = await done
        if found is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it can't be in time")
        answer = ModelInferResponse(model_name=message.model_name, id=message.id)
        answer.outputs.add(name="y", datatype="FP32", shape=found.shape)
        answer.raw_output_contents.append(found.tobytes())
        return bytes(answer.SerializeToString())

    async def execute(self) -> None:
        """Execute what waits, the earliest deadline first, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                self._come.clear()
                await self._come.wait()
            deadline_ns, _, tensors, done = heapq.heappop(self._waiting)
            expected_ns = statistics.median(self._took_ns) if self._took_ns else 0
            if time.monotonic_ns() + expected_ns + MARGIN_NS > deadline_ns:
                done.set_result(None)
                continue
            begin_ns = time.monotonic_ns()
            (found,) = await loop.run_in_executor(self._thread, self._session.run, None, tensors)
            self._took_ns.append(time.monotonic_ns() - begin_ns)
            if not done.done():
                done.set_result(found)


def prioritise(priority: int) -> None:
    """Give the calling thread a real-time priority, if that is allowed."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def session_of(model: Path) -> Any:
    """Return an ONNX file's session, which executes in the thread that calls it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options)


async def serve(model: Path, port: int) -> None:
    """Serve until the process is ended."""
    bare = Bare(session_of(model))
    server = aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler = {"ModelInfer": grpc.stream_unary_rpc_method_handler(bare.infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handler),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await bare.execute()


@contextlib.contextmanager
def bare(model: Path, log: Path, module: str = __spec__.name) -> Iterator[str]:
    """Run it, or another ``module`` like it, on a model's file; yield where it serves gRPC.

    Raises `Unavailable` if it does not start.
    """
    (port,) = free_ports(1)
    with log.open("wb") as file:
        command = [sys.executable, "-m", module, str(model), str(port)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(START_S)
            except grpc.FutureTimeoutError:
                said = log.read_text(errors="replace").strip()[-300:]
                raise Unavailable(f"the bare server does not start: {said}") from None
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def main(
    model: Annotated[Path, typer.Argument(help="An ONNX file with one output.")],
    port: Annotated[int, typer.Argument(help="Of 127.0.0.1, where gRPC is served.")],
) -> None:
    """Serve one model until the process is ended."""
    # Threads inherit it: grpcio reads in threads of its own.
    prioritise(READ_PRIORITY)
    threading.current_thread().name = "bare"
    uvloop.run(serve(model, port))


if __name__ == "__main__":
    typer.run(main)
