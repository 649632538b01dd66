"""The bare server (`bare`) as three processes, as Mainspring's are: what keeping them apart takes of a core.

One reads calls with grpcio and puts tensors into memory that it shares with the one that executes, one keeps
a queue by deadline and decides, and one copies an input to memory of its own and has another thread execute.
Between each two is a socket with messages of a few bytes; nothing is checked, there is one model, and
nothing is written down. ``python -m mainspring.experiments.bench.triton.apart MODEL.onnx PORT``, which
starts the other two.
"""

from __future__ import annotations

import asyncio
import heapq
import mmap
import os
import queue
import socket
import statistics
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import typer
import uvloop
from grpc import aio

from mainspring.experiments.bench.least import Waits
from mainspring.experiments.bench.triton.bare import (
    DTYPES,
    EXEC_PRIORITY,
    MARGIN_NS,
    READ_PRIORITY,
    REMEMBERED,
    prioritise,
    session_of,
)
from mainspring.gateway.grpc.messages import INFERENCE, ModelInferResponse
from mainspring.gateway.grpc.requests import parse

SLOTS = 128
"""Inputs that the shared memory has room for; a call beyond them waits for one."""
AHEAD = 2
"""Requests that the one that executes has at one time, so that it need not wait for the next."""
_MESSAGE = struct.Struct("<iqq")
"""A slot, and two numbers: shape and deadline, or how long an execution took; -1 for a refusal."""
_MOST_BYTES = 1 << 20
_REFUSED = -1


def _received(end: socket.socket) -> tuple[int, int, int]:
    """Return a message's slot and two numbers; end the process if the other end is closed."""
    data = end.recv(_MESSAGE.size)
    if not data:
        sys.exit()
    slot, first, second = _MESSAGE.unpack(data)
    return slot, first, second


class Reader:
    """Reads calls; one event loop calls it."""

    def __init__(self, memory: int, slot_bytes: int, control: socket.socket, data: socket.socket) -> None:
        self._shared = memoryview(mmap.mmap(memory, SLOTS * slot_bytes))
        self._slot_bytes = slot_bytes
        self._control, self._data = control, data
        self._free = asyncio.Queue[int]()
        for slot in range(SLOTS):
            self._free.put_nowait(slot)
        self._calls: dict[int, asyncio.Future[bytes | None]] = {}
        loop = asyncio.get_running_loop()
        loop.add_reader(control, self._refused)
        loop.add_reader(data, self._answered)

    async def infer(self, _incoming: AsyncIterator[bytes], context: Any) -> bytes:
        """Answer one call, or refuse it."""
        arrived_ns = time.monotonic_ns()
        message, (raw,) = parse(await context.read())
        timeout = message.parameters["timeout"].int64_param * 1000 if message.parameters else 0
        slot = await self._free.get()
        begin = slot * self._slot_bytes
        self._shared[begin : begin + len(raw)] = raw
        done = self._calls[slot] = asyncio.get_running_loop().create_future()
        self._control.send(_MESSAGE.pack(slot, arrived_ns + timeout if timeout else 1 << 62, 0))
        found = await done
        self._free.put_nowait(slot)
        if found is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it can't be in time")
        answer = ModelInferResponse(model_name=message.model_name, id=message.id)
        answer.outputs.add(name="y", datatype="FP32", shape=(1, len(found) // 4))
        answer.raw_output_contents.append(found)
        return bytes(answer.SerializeToString())

    def _refused(self) -> None:
        self._end(_received(self._control)[0], None)

    def _answered(self) -> None:
        answer = self._data.recv(_MOST_BYTES)
        self._end(_MESSAGE.unpack_from(answer)[0], answer[_MESSAGE.size :])

    def _end(self, slot: int, found: bytes | None) -> None:
        done = self._calls.pop(slot)
        if not done.done():
            done.set_result(found)


def decide(to_reader: socket.socket, to_executor: socket.socket) -> None:
    """Have what waits executed, the earliest deadline first; refuse what can't be in time."""
    waiting: list[tuple[int, int]] = []
    took_ns: deque[int] = deque(maxlen=REMEMBERED)
    state = {"ahead": 0, "since": 0}

    def go_on() -> None:
        while waiting and state["ahead"] < AHEAD:
            deadline_ns, slot = heapq.heappop(waiting)
            expected_ns = int(statistics.median(took_ns)) if took_ns else 0
            now_ns = time.monotonic_ns()
            begin_ns = max(now_ns, state["since"] + expected_ns) if state["ahead"] else now_ns
            if begin_ns + expected_ns + MARGIN_NS > deadline_ns:
                to_reader.send(_MESSAGE.pack(slot, _REFUSED, 0))
                continue
            if not state["ahead"]:
                state["since"] = now_ns
            state["ahead"] += 1
            to_executor.send(_MESSAGE.pack(slot, 0, 0))

    def arrived() -> None:
        slot, deadline_ns, _ = _received(to_reader)
        heapq.heappush(waiting, (deadline_ns, slot))
        go_on()

    def ended() -> None:
        took_ns.append(_received(to_executor)[2])
        state["ahead"] -= 1
        state["since"] = time.monotonic_ns()
        go_on()

    waits = Waits()
    waits.add(to_reader, arrived)
    waits.add(to_executor, ended)
    waits.run()


def execute(
    model: Path, memory: int, slot_bytes: int, to_reader: socket.socket, to_decider: socket.socket
) -> None:
    """Execute what the one that decides sends, one after the other, in a thread of its own."""
    session = session_of(model)
    (given,) = session.get_inputs()
    shape = [each if isinstance(each, int) else 1 for each in given.shape]
    shared = mmap.mmap(memory, SLOTS * slot_bytes, prot=mmap.PROT_READ)
    bell, ring = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    jobs: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    ended: deque[tuple[int, int, Any]] = deque()
    own = [np.zeros(shape, DTYPES["FP32"]) for _ in range(AHEAD + 1)]
    turn = {"next": 0}

    def run() -> None:
        prioritise(EXEC_PRIORITY)
        while True:
            slot, tensor = jobs.get()
            began_ns = time.monotonic_ns()
            (found,) = session.run(None, {given.name: tensor})
            ended.append((slot, time.monotonic_ns() - began_ns, found))
            ring.send(b"x")

    def come() -> None:
        slot = _received(to_decider)[0]
        tensor = own[turn["next"]]
        turn["next"] = (turn["next"] + 1) % len(own)
        tensor.ravel()[:] = np.frombuffer(shared, np.float32, tensor.size, slot * slot_bytes)
        jobs.put((slot, tensor))

    def answer() -> None:
        bell.recv(1)
        slot, took_ns, found = ended.popleft()
        to_reader.sendmsg((_MESSAGE.pack(slot, 0, 0), found.tobytes()))
        to_decider.send(_MESSAGE.pack(slot, 0, took_ns))

    threading.Thread(target=run, daemon=True, name="exec").start()
    waits = Waits()
    waits.add(to_decider, come)
    waits.add(bell, answer)
    waits.run()


async def serve(port: int, reader_of: Any) -> None:
    """Serve until the process is ended."""
    reader = reader_of()
    server = aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler = {"ModelInfer": grpc.stream_unary_rpc_method_handler(reader.infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handler),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main(
    model: Annotated[Path, typer.Argument(help="An ONNX file with one input and one output, of floats.")],
    port: Annotated[int, typer.Argument(help="Of 127.0.0.1, where gRPC is served.")],
) -> None:
    """Serve one model by three processes until this one is ended."""
    slot_bytes = _input_bytes(model)
    memory = os.memfd_create("bare-apart")
    os.ftruncate(memory, SLOTS * slot_bytes)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    (control, of_control), (data, of_data), (to_executor, to_decider) = pairs
    # Threads and processes inherit it: grpcio reads in threads of its own.
    prioritise(READ_PRIORITY)
    parts: dict[str, Callable[[], object]] = {
        "decider": lambda: decide(of_control, to_executor),
        "executor": lambda: execute(model, memory, slot_bytes, of_data, to_decider),
    }
    kept = {"decider": (of_control, to_executor), "executor": (of_data, to_decider)}
    for name, part in parts.items():
        if os.fork() == 0:
            threading.current_thread().name = name
            for end in (each for pair in pairs for each in pair if each not in kept[name]):
                end.close()
            try:
                part()
            finally:
                os._exit(0)
    for end in (of_control, of_data, to_executor, to_decider):
        end.close()
    uvloop.run(serve(port, lambda: Reader(memory, slot_bytes, control, data)))


def _input_bytes(model: Path) -> int:
    """Return the bytes of the model's input of one row, up to whole pages of memory."""
    (given,) = session_of(model).get_inputs()
    values = int(np.prod([each if isinstance(each, int) else 1 for each in given.shape]))
    return -(-values * 4 // mmap.PAGESIZE) * mmap.PAGESIZE


if __name__ == "__main__":
    typer.run(main)
