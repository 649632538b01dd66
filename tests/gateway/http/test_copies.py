"""How often a tensor of 600 KB is copied between a client's socket and a worker's.

`tracemalloc` sees every buffer that Python or numpy allocate. A tensor that comes needs one, which the kernel
fills, and leaves from there; so does one that goes back. A copy would be another. Where there is a slab, it
needs none: the kernel fills a place there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import uvloop

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.effects import Answer, Connection
from mainspring.gateway.http.server import HttpServer, serve_http
from mainspring.gateway.memory import Budget, Memory, Uploads
from mainspring.gateway.peer_connections import WorkerLinks
from mainspring.messages.clients import InferRequest
from mainspring.messages.delays import Back
from mainspring.messages.peers import Input, TensorHeader
from mainspring.transport.hub import Hub
from mainspring.transport.tokens import NOTHING, Credential
from tests.blocking import Server
from tests.gateway.fakes import make_spec
from tests.gateway.oip.models import TIMING
from tests.patience import PATIENCE_S

BEST_EFFORT = msgspec.structs.replace(TIMING, left_ns=None)
COLUMNS = 150_000
SIZE = COLUMNS * 4


class Way:
    """What stands behind HTTP: the links to a worker that is a bare socket, and an answer that is there."""

    def __init__(self, links: WorkerLinks, memory: Memory) -> None:
        catalog = Catalog()
        catalog.model_up(make_spec("wide", COLUMNS))
        self.driver = SimpleNamespace(
            catalog=catalog,
            alone=None,
            ready=True,
            gate=SimpleNamespace(closed=False, has_accounts=False),
            memory=memory,
        )
        self.statistics = None
        self.answers = Budget(1 << 30)
        self.uploads = Uploads()
        self.back = Back()
        self.regions = None
        self.next_key = itertools.count().__next__
        self._links = links
        self._output = memoryview(bytes(SIZE))
        self.sent = 0

    def connection(self) -> Connection:
        return Connection("test", b"1")

    def forget(self, connection: Connection) -> None:
        """Nothing is kept."""

    def submit(
        self,
        connection: Connection,
        request: InferRequest,
        frames: list[Any],
        done: Callable[[Any], None],
        came_ns: int,
        shown: Credential,
    ) -> None:
        assert came_ns > 0
        assert shown == NOTHING
        assert self._links.send("worker", Input(1, request.key), frames)
        self.sent += sum(map(len, frames))
        header = TensorHeader("twice", "float32", (1, COLUMNS))
        done(Answer(connection, request.key, (header,), (self._output,), BEST_EFFORT))


@contextmanager
def way(slab_bytes: int) -> Iterator[Way]:
    hub, worker = Hub(), Server(role="worker", name=b"worker")
    try:
        memory = Memory(slab_bytes)
        links = WorkerLinks(hub, GatewayConfig(), lambda _: None, memory)
        links.connect("worker", worker.address)
        yield Way(links, memory)
    finally:
        worker.close()
        hub.close()


async def exchange(server: HttpServer) -> int:
    """Send a request and read its reply; return the peak of what was allocated meanwhile."""
    tensor = {"name": "data", "shape": [1, COLUMNS], "datatype": "FP32"}
    text = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": SIZE}}],
            "outputs": [{"name": "twice", "parameters": {"binary_data": True}}],
        }
    ).encode()
    head = (
        f"POST /v2/models/wide/infer HTTP/1.1\r\nhost: t\r\ncontent-length: {len(text) + SIZE}\r\n"
        f"inference-header-content-length: {len(text)}\r\n\r\n"
    ).encode()
    parts = (head + text, bytes(SIZE))
    sink = memoryview(bytearray(4 * SIZE))
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    name, port = server.address.removeprefix("http://").split(":")
    await loop.sock_connect(client, (name, int(port)))
    tracemalloc.start()
    for part in parts:
        await loop.sock_sendall(client, part)
    received = 0
    while received < SIZE:
        came = await asyncio.wait_for(loop.sock_recv_into(client, sink[received:]), PATIENCE_S)
        assert came, f"the gateway closed the connection after {bytes(sink[:received])!r}"
        received += came
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    client.close()
    return peak


@pytest.mark.parametrize(("slab_bytes", "buffers"), [(0, 1), (8 << 20, 0)])
def test_a_tensor_has_one_buffer_between_its_sockets(slab_bytes: int, buffers: int) -> None:
    async def run(behind: Way) -> int:
        config = GatewayConfig(http_address="http://127.0.0.1:0")
        server = await serve_http(cast("Any", behind), config)
        try:
            await exchange(server)
            return await exchange(server)
        finally:
            await server.close(0)

    with way(slab_bytes) as behind, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        peak = runner.run(run(behind))
        assert behind.sent == 2 * SIZE
    found = peak / SIZE
    assert buffers <= found < buffers + 0.5, f"{found:.2f} buffers of the tensor's size instead of {buffers}"
