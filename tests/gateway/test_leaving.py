"""Connections that are kept spread over gateways as these come and go, and no request is lost by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from grpc import aio
from tritonclient.grpc import service_pb2

from mainspring.client.client import Client
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.server import Addresses
from tests.gateway.balancer import Balancer, Target, is_ready
from tests.gateway.fakes import fake_cluster, serving, wait_until
from tests.patience import PATIENCE_S

AGE_MS = 2_000.0
LAME_DUCK_MS = 4_000.0
EACH = 20
"""Kept connections of each protocol."""
PAUSE_S = 0.1
"""Between two requests of one connection."""
INFER = b'{"inputs":[{"name":"data","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
ONE = np.ones((1, 4), np.float32)


@contextmanager
def one_gateway(**options: Any) -> Iterator[Addresses]:
    """A gateway with a cluster of its own."""
    served = {"http_address": "http://127.0.0.1:0", "grpc_address": "grpc://127.0.0.1:0"}
    keys = {"max_connection_age_ms": AGE_MS, "lame_duck_ms": LAME_DUCK_MS, "local_clients": False}
    # Requests that wait for a machine that stands still are refused as too many, which is not asked here.
    keys["http_shed_wait_ms"] = 1_000.0 * PATIENCE_S
    with fake_cluster() as cluster, serving(cluster.address, **served, **{**keys, **options}) as addresses:
        yield addresses


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def target(name: str, addresses: Addresses) -> Target:
    return Target(name, port(addresses.http), port(addresses.grpc), port(addresses.zeromq))


class Load:
    """Clients that ask again and again over connections which they keep; each failure is noted."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._over = asyncio.Event()
        self.answers = 0
        self.failures: list[str] = []
        self._tasks = [
            asyncio.create_task(each) for _ in range(EACH) for each in (self._by_http(), self._by_grpc())
        ]

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def _by_http(self) -> None:
        reader = writer = None
        while not self._over.is_set():
            try:
                if reader is None or writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._ports["http"])
                writer.write(
                    b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
                    % len(INFER)
                    + INFER
                )
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
                self._count(head.startswith(b"http/1.1 200"), head.decode())
                if b"connection: close" in head:
                    writer.close()
                    reader = writer = None
            except (OSError, EOFError) as error:
                self._count(False, repr(error))
                reader = writer = None
            await asyncio.sleep(PAUSE_S)
        if writer is not None:
            writer.close()

    async def _by_grpc(self) -> None:
        request = service_pb2.ModelInferRequest(model_name="double")
        tensor = request.inputs.add(name="data", datatype="FP32", shape=[1, 4])
        tensor.contents.fp32_contents.extend([1, 2, 3, 4])
        data = request.SerializeToString()
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(f"127.0.0.1:{self._ports['grpc']}", options=options) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            while not self._over.is_set():
                try:
                    self._count(bool(await infer(data, timeout=PATIENCE_S)), "")
                except grpc.RpcError as error:
                    self._count(False, repr(error))
                await asyncio.sleep(PAUSE_S)

    def _count(self, answered: bool, failure: str) -> None:
        self.answers += answered
        if not answered:
            self.failures.append(failure)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


def even(balancer: Balancer) -> bool:
    """Whether two gateways' shares of each protocol's connections are within 20 % of half of them."""
    return all(
        0.8 * EACH / 2 <= count <= 1.2 * EACH / 2
        for protocol in ("http", "grpc")
        for count in balancer.shares(protocol).values()
    )


def test_kept_connections_spread_over_a_gateway_that_comes_and_leave_one_that_goes() -> None:
    async def run() -> None:
        balancer, loop = Balancer(), asyncio.get_running_loop()
        await balancer.start()
        with one_gateway() as second, ExitStack() as first, ThreadPoolExecutor(1) as aside:
            balancer.targets.append(target("first", first.enter_context(one_gateway())))
            await until(lambda: "first" in balancer.healthy)
            load = Load(balancer.ports)
            await until(lambda: load.answers > 4 * EACH)
            await until(
                lambda: {*balancer.shares("http").values(), *balancer.shares("grpc").values()} == {EACH}
            )
            balancer.targets.append(target("second", second))
            # Each connection has gone once after one age and a tenth.
            await asyncio.sleep(1.1 * AGE_MS / 1e3)
            await until(lambda: even(balancer))
            leaves = loop.run_in_executor(aside, first.close)
            await until(lambda: "first" not in balancer.healthy)
            await leaves
            balancer.targets.pop(0)
            answers = load.answers
            await until(lambda: load.answers > answers + 4 * EACH)
            await load.end()
            assert load.failures == []
        await balancer.close()

    asyncio.run(run())


def test_one_that_leaves_says_so_at_once_and_answers_until_its_time_is_over() -> None:
    with ExitStack() as stack, ExitStack() as its:
        addresses = its.enter_context(one_gateway(lame_duck_ms=1_500.0, max_connection_age_ms=0.0))
        channel = stack.enter_context(grpc.insecure_channel(addresses.grpc.removeprefix("grpc://")))

        def asked(path: str, request: bytes = b"") -> bytes:
            return bytes(channel.unary_unary(path)(request, timeout=PATIENCE_S))

        ready = "/inference.GRPCInferenceService/ServerReady"
        health = "/grpc.health.v1.Health/Check"
        double = b"\x0a\x06double"
        wait_until(lambda: asked(ready) == b"\x08\x01")
        assert asked(health) == asked(health, double) == b"\x08\x01"
        with ThreadPoolExecutor(1) as aside, Client(addresses.zeromq) as client:
            client.infer("double", {"data": ONE})
            leaves = aside.submit(its.pop_all().close)
            while asyncio.run(is_ready(port(addresses.http))):
                assert not leaves.done()
            assert asked(ready) == b""
            assert asked(health) == asked(health, double) == b"\x08\x02"
            assert client.infer("double", {"data": ONE})["sum"] == 4, "it serves on"
            leaves.result(PATIENCE_S)


def test_own_clients_make_another_connection_and_lose_nothing() -> None:
    async def run() -> None:
        balancer = Balancer()
        await balancer.start()
        with one_gateway(max_connection_age_ms=400.0) as addresses:
            balancer.targets.append(target("one", addresses))
            await until(lambda: "one" in balancer.healthy)
            over = threading.Event()

            def ask() -> int:
                answers = 0
                with Client(f"tcp://127.0.0.1:{balancer.ports['zeromq']}") as client:
                    while not over.is_set():
                        answers += (
                            len([each.result() for each in [client.submit("double", {"data": ONE})] * 4]) > 0
                        )
                    assert client.status().not_ready == ""
                return answers

            begun = balancer.begun
            asking = asyncio.get_running_loop().run_in_executor(None, ask)
            await until(lambda: balancer.begun - begun > 4)
            over.set()
            assert await asking > 4
        await balancer.close()

    asyncio.run(run())


@pytest.mark.parametrize("key", ["lame_duck_ms", "max_connection_age_ms"])
def test_neither_is_a_negative_time(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is -1"):
        msgspec.convert({key: -1}, GatewayConfig)
