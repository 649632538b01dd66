"""Cost of a request to each process around EXEC: processor time, wake-ups and system calls, by thread.

One request at a time over ZeroMQ, past it as clients of the gateway's host do, with the tensor sent, copied
to the client's memory and in it from the start, over HTTP, and over HTTP through three processes that do
nothing but what has to be done (`least`), in turns. The emulated device sleeps while it executes and nothing
spins before an instant, so all processor time is the path's. `bench.path` prints it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.connection import Connection
from mainspring.client.memory import MEMORY_BYTES, ClientMemory, allocate
from mainspring.experiments.bench import least
from mainspring.experiments.bench.report import Figure
from mainspring.experiments.bench.usage import MAIN, Usage, calls_of, usage_of_threads
from mainspring.messages.clients import InferReply, InferRequest
from mainspring.messages.peers import TensorHeader
from tests.emulated_cluster import cluster_of, write_profile

EXECUTE_MS = 2.0
OUTPUT_KB = 4
SLO_NS = 1_000_000_000
BLOCK = 50
"""Requests of one kind before the next kind's turn."""
WARM_UP = 40
PAUSE_S = 0.002
REST_S = 1.0
ZEROMQ, LOCAL, IN_PLACE, HTTP = "ZeroMQ", "local", "local, in place", "HTTP"
CHAIN = "HTTP, bare chain"
"""Three processes that do nothing but what has to be done (`least`)."""
LOCAL_FRAMES = "local, sent"
TARGET_MS = 1.0
TARGET_KB = 600.0
LEAST_US = 1.0
"""A thread that takes less for a request, and does not wake up for it, has no row."""
CALLS_NAMED = 6
_HEADERS_END = b"\r\n\r\n"
_LENGTH = b"content-length:"

Threads = dict[tuple[str, str], Usage]


class Around(msgspec.Struct):
    """Costs of blocks of `BLOCK` requests, by the way that they came."""

    blocks: dict[str, list[Threads]] = {}
    calls: dict[str, dict[str, dict[str, int]]] = {}
    rest: Threads = {}
    request_s: float = 0.0


class ConnectionCaller:
    """Sends requests over a `Connection`, as the replayer does."""

    def __init__(
        self,
        address: str,
        tensor: npt.NDArray[np.float32],
        *,
        local: bool,
        memory_bytes: int = MEMORY_BYTES,
        in_place: bool = False,
    ) -> None:
        """``local``: past ZeroMQ; ``in_place``: with the tensor in memory that the gateway reads.

        ``memory_bytes``: of that memory, to which others are copied; 0: they are sent.
        """
        memory = ClientMemory(memory_bytes)
        self._connection = Connection(address, local=local, memory=memory)
        self._connection.open(10)
        if self._connection.is_local is not local:
            raise RuntimeError(f"the gateway at {address} lets nobody go past ZeroMQ")
        self._tensor = tensor
        if in_place:
            self._tensor = allocate(memory, tensor.shape, tensor.dtype)
            self._tensor[:] = tensor
        self._key = 0

    def request(self) -> InferReply:
        """Send one request and return its answer; raises RuntimeError if it fails."""
        self._key += 1
        header = TensorHeader("data", "float32", self._tensor.shape)
        self._connection.send(InferRequest(self._key, "model", (header,), SLO_NS), [self._tensor])
        while True:
            self._connection.poll(1_000)
            if (received := self._connection.receive()) is not None:
                break
        if not isinstance(received[0], InferReply):
            raise RuntimeError(f"a request failed: {received[0]}")
        return received[0]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def callers_by_connection(address: str, tensor: npt.NDArray[np.float32]) -> dict[str, ConnectionCaller]:
    """Return callers for each way from a client of Mainspring's own to its gateway, by the way's name."""
    return {
        ZEROMQ: ConnectionCaller(address, tensor, local=False),
        LOCAL_FRAMES: ConnectionCaller(address, tensor, local=True, memory_bytes=0),
        LOCAL: ConnectionCaller(address, tensor, local=True),
        IN_PLACE: ConnectionCaller(address, tensor, local=True, in_place=True),
    }


class HttpCaller:
    """Sends one request, with its tensor as binary data, again and again over a kept connection."""

    def __init__(self, port: int, tensor: npt.NDArray[np.float32]) -> None:
        described = {
            "name": "data",
            "shape": tensor.shape,
            "datatype": "FP32",
            "parameters": {"binary_data_size": tensor.nbytes},
        }
        told = {"parameters": {"binary_data_output": True, "timeout": SLO_NS // 1000}, "inputs": [described]}
        json = msgspec.json.encode(told)
        lines = (
            "POST /v2/models/model/infer HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Content-Length: {len(json) + tensor.nbytes}",
            f"Inference-Header-Content-Length: {len(json)}",
        )
        self.body_bytes = len(json) + tensor.nbytes
        self._request = "\r\n".join(lines).encode() + _HEADERS_END + json + tensor.tobytes()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self) -> bytes:
        """Send the request and return its answer's body; raises RuntimeError if it fails."""
        self._socket.sendall(self._request)
        answer = bytearray()
        while not _whole(answer):
            if not (part := self._socket.recv(1 << 20)):
                raise RuntimeError("the gateway closed the connection")
            answer += part
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"a request failed: {bytes(answer[:500])!r}")
        return bytes(answer[answer.index(_HEADERS_END) + len(_HEADERS_END) :])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _whole(answer: bytearray) -> bool:
    end = answer.find(_HEADERS_END)
    if end < 0:
        return False
    head = bytes(answer[:end]).lower()
    length = head[head.index(_LENGTH) + len(_LENGTH) :].split(b"\r\n", 1)[0]
    return len(answer) >= end + len(_HEADERS_END) + int(length)


def block_of(request: Callable[[], object], count: int = BLOCK) -> None:
    """Send requests one by one, with pauses."""
    for _ in range(count):
        request()
        time.sleep(PAUSE_S)


def measure(input_kb: float, requests: int, run_dir: Path, *, console: bool = False) -> Around:
    """Return what at least ``requests`` of each kind cost, in turns; with a console beside, if wanted."""
    profile = write_profile(
        run_dir / "profiles.csv", input_kb=input_kb, output_kb=OUTPUT_KB, execute_ms=EXECUTE_MS
    )
    around = Around()
    with ExitStack() as stack:
        port, console_port = free_ports(2)
        tables: dict[str, dict[str, Any]] = {
            "worker": {"spin_us": 0},
            "gateway": {"http_address": f"http://127.0.0.1:{port}"},
        }
        if console:
            tables["cluster"] = {"console": True}
            tables["console"] = {"address": f"http://127.0.0.1:{console_port}"}
        cluster = stack.enter_context(cluster_of(run_dir, profile, tables))
        tensor = np.zeros((1, round(input_kb * 1000) // 4), np.float32)
        over_http = HttpCaller(port, tensor)
        chain = least.chain(over_http.body_bytes, OUTPUT_KB * 1000, EXECUTE_MS)
        bare_port, bare_pids = stack.enter_context(chain)
        callers: dict[str, ConnectionCaller | HttpCaller] = {
            **callers_by_connection(cluster.address, tensor),
            HTTP: over_http,
            CHAIN: HttpCaller(bare_port, tensor),
        }
        for each in callers.values():
            stack.callback(each.close)
        kinds: dict[str, Callable[[], object]] = {name: each.request for name, each in callers.items()}
        for request in kinds.values():
            block_of(request, WARM_UP)
        served = {kind: bare_pids if kind == CHAIN else _pids(cluster) for kind in kinds}
        _blocks(around, served, kinds, requests)
        for kind, request in kinds.items():
            with calls_of(served[kind]) as calls:
                block_of(request)
            around.calls[kind] = calls
    return around


def _blocks(
    around: Around,
    served: Mapping[str, Mapping[str, int]],
    kinds: Mapping[str, Callable[[], object]],
    requests: int,
) -> None:
    """Have each kind its turn until there are enough requests; then look at a rest.

    ``served``: the processes that serve each kind, and their ids.
    """
    began, count = time.monotonic(), 0
    while count < requests:
        for kind, request in kinds.items():
            before = _threads(served[kind])
            block_of(request)
            around.blocks.setdefault(kind, []).append(_since(_threads(served[kind]), before))
        count += BLOCK
    around.request_s = (time.monotonic() - began) / (count * len(kinds))
    before = _threads(served[HTTP])
    time.sleep(REST_S)
    around.rest = _since(_threads(served[HTTP]), before)


def _pids(cluster: LocalCluster) -> dict[str, int]:
    found = {job.name: cluster.supervisor.pid(job.name) for job in cluster.plan.jobs}
    return {name: pid for name, pid in found.items() if pid is not None}


def _threads(pids: Mapping[str, int]) -> Threads:
    return {
        (name, thread): usage for name, pid in pids.items() for thread, usage in usage_of_threads(pid).items()
    }


def _since(after: Threads, before: Threads) -> Threads:
    return {key: usage.since(before.get(key, Usage())) for key, usage in after.items()}


def figures_of(input_kb: float, around: Around) -> list[Figure]:
    """Return rows for each kind: all processes together, then each thread that took part."""
    rows = []
    for kind, blocks in around.blocks.items():
        keys = sorted({key for block in blocks for key in block}, key=lambda key: (key[0], key[1] != MAIN))
        found = {key: _for_each(blocks, key) for key in keys}
        size = f"{input_kb:.0f} KB, {kind}"
        target = TARGET_MS if kind == HTTP and input_kb >= TARGET_KB else None
        rest = sum(usage.cpu_ns for usage in around.rest.values()) / REST_S * around.request_s / 1e6
        note = f"of it {rest:.2f} ms also without requests; one every {around.request_s * 1e3:.1f} ms"
        note = "nothing decided, nothing checked, the same run" if kind == CHAIN else note
        total = sum(cpu_us for cpu_us, _, _ in found.values()) / 1e3
        rows.append(Figure(f"{size}: CPU around EXEC", total, "ms", target, note=note))
        for (process, thread), (cpu_us, wakeups, turns) in found.items():
            if cpu_us >= LEAST_US or wakeups >= 0.1:
                name = process if thread == MAIN else f"{process}, {thread}"
                note = f"{wakeups:.1f} wake-ups, {turns:.1f} turns"
                rows.append(Figure(f"{size}:   CPU of {name}", cpu_us, "us", note=note))
        rows += [
            Figure(f"{size}:   system calls of {name}", sum(calls.values()) / BLOCK, "", note=_most(calls))
            for name, calls in around.calls.get(kind, {}).items()
        ]
    return rows


def _for_each(blocks: list[Threads], key: tuple[str, str]) -> tuple[float, float, float]:
    used = [block.get(key, Usage()) for block in blocks]
    cpu_us, wakeups, turns = np.median([(each.cpu_ns / 1e3, each.wakeups, each.turns) for each in used], 0)
    return cpu_us / BLOCK, wakeups / BLOCK, turns / BLOCK


def _most(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count / BLOCK:.1f}" for name, count in list(calls.items())[:CALLS_NAMED])
