"""Requests from code in the gateway's own loop, and protocols beside ZeroMQ, against a fake cluster."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import zmq

from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.admin import Reply
from mainspring.gateway.core.effects import Answer, Connection, Refuse
from mainspring.gateway.server import Addresses, Served
from mainspring.gateway.services import Outcome, Services
from mainspring.messages.clients import GetStatus, InferRequest, StatusReply
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from tests.gateway.fakes import FakeCluster, fake_cluster, serving, wait_until
from tests.patience import PATIENCE_S

ROW = np.arange(4, dtype=np.float32)


class Bench:
    """Stands in for a protocol: hands `Services` to the test, and runs what that wants in the loop."""

    def __init__(self) -> None:
        self.started: queue.Queue[Services] = queue.Queue()
        self.closed = threading.Event()
        self.address = "http://here:1"
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self, services: Services, config: GatewayConfig) -> Served:
        self.loop = asyncio.get_running_loop()
        self.started.put(services)
        return self

    def leave(self) -> None:
        pass

    async def close(self, grace_s: float) -> None:
        self.closed.set()

    def do(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(PATIENCE_S)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    monkeypatch.setattr(server, "STARTERS", {"http": bench.start})
    return bench


@contextmanager
def served(bench: Bench) -> Iterator[tuple[Services, FakeCluster, Addresses]]:
    with (
        fake_cluster() as cluster,
        serving(cluster.address, http_address="http://127.0.0.1:0") as addresses,
    ):
        services = bench.started.get(timeout=PATIENCE_S)
        wait_until(lambda: services.driver.told.ready)
        yield services, cluster, addresses


def request(services: Services, model: str, slo_ns: int | None = 10_000_000_000) -> InferRequest:
    return InferRequest(services.next_key(), model, (TensorHeader("data", "float32", (1, 4)),), slo_ns)


def test_an_awaited_request_is_answered_by_the_worker(bench: Bench) -> None:
    with served(bench) as (services, _, addresses):
        assert addresses.http == bench.address
        connection = services.connection()
        outcome = bench.do(lambda: services.infer(connection, request(services, "double"), [ROW.tobytes()]))
    assert isinstance(outcome, Answer)
    assert np.frombuffer(outcome.frames[0], np.float32).tolist() == [0, 2, 4, 6]  # type: ignore[call-overload]
    assert bench.closed.is_set()


def test_a_refusal_comes_once_and_says_why(bench: Bench) -> None:
    with served(bench) as (services, _, _):
        outcome = bench.do(lambda: services.infer(services.connection(), request(services, "nothing"), [b""]))
        assert isinstance(outcome, Refuse)
        assert outcome.reason is Reason.UNKNOWN_MODEL
        assert not services._waiting


def test_cancelling_the_waiting_task_gives_the_request_up(bench: Bench) -> None:
    with served(bench) as (services, cluster, _):

        async def cancelled() -> None:
            waiting = services.infer(services.connection(), request(services, "hold"), [ROW.tobytes()])
            task = asyncio.create_task(waiting)
            while not cluster.arrivals:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        bench.do(cancelled)
        wait_until(lambda: cluster.cancels)
        wait_until(lambda: services.driver.core.in_flight == 0)
        assert not services._waiting


def test_a_client_that_is_gone_takes_its_requests_with_it_and_no_others(bench: Bench) -> None:
    outcomes: list[tuple[str, Outcome]] = []
    with served(bench) as (services, cluster, _):
        gone, stays = services.connection(), services.connection()

        async def submit_and_go() -> None:
            frames = [ROW.tobytes()]
            services.submit(
                gone, request(services, "hold"), frames, lambda each: outcomes.append(("gone", each))
            )
            services.submit(
                stays, request(services, "hold"), frames, lambda each: outcomes.append(("stays", each))
            )
            services.forget(gone)

        bench.do(submit_and_go)
        assert [name for name, _ in outcomes] == ["gone"]
        wait_until(lambda: len(cluster.arrivals) == 2)
        cluster.do(lambda: cluster.dispatch(cluster.arrivals[1].request_id))
        wait_until(lambda: len(outcomes) == 2)
    assert isinstance(outcomes[0][1], Refuse)
    assert outcomes[0][1].reason is Reason.CANCELLED
    assert isinstance(outcomes[1][1], Answer)


def test_a_front_end_that_fails_takes_no_other_request_with_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Outcome] = []

    def fails(_: Outcome) -> None:
        raise RuntimeError("a fault of a front end")

    with served(bench) as (services, _, _):
        first, second = request(services, "hold"), request(services, "hold")
        connection = services.connection()

        async def submit_and_give_up() -> None:
            services.submit(connection, first, [ROW.tobytes()], fails)
            services.submit(connection, second, [ROW.tobytes()], outcomes.append)
            for each in (first, second):
                services.driver.cancel(connection, each.key)

        bench.do(submit_and_give_up)
        assert services.driver.counts["front_end_failures"] == 1
    assert [each.key for each in outcomes] == [second.key]
    assert "a fault of a front end" in caplog.text


def test_an_answer_that_can_not_be_handed_over_becomes_a_refusal(bench: Bench) -> None:
    class Broken(Bench):
        def __init__(self) -> None:
            super().__init__()
            self.refused: list[Refuse] = []

        def answer(self, answer: Answer) -> None:
            raise RuntimeError("a fault of a front end")

        def refuse(self, refusal: Refuse) -> None:
            self.refused.append(refusal)

        def reply(self, connection: Connection, message: Reply) -> None:
            raise AssertionError("nothing was asked for")

    with served(bench) as (services, _, _):
        broken = Broken()

        async def submit() -> None:
            services.driver.front_ends["broken"] = broken
            connection = Connection("broken", b"")
            services.driver.submit(connection, request(services, "double"), [zmq.Frame(ROW.tobytes())])

        bench.do(submit)
        wait_until(lambda: broken.refused)
    assert [each.reason for each in broken.refused] == [Reason.WORKER_FAILED]


def test_a_command_is_answered_by_the_controller(bench: Bench) -> None:
    with served(bench) as (services, _, _):
        reply = bench.do(lambda: services.ask(GetStatus(services.next_key())))
        assert isinstance(reply, StatusReply)
        assert not services._asked


def test_what_can_not_be_served_ends_the_start_and_closes_the_rest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(services: Services, config: GatewayConfig) -> Served:
        raise OSError(f"can't listen at {config.grpc_address}")

    monkeypatch.setattr(server, "STARTERS", {"http": bench.start, "grpc": fails})
    config = GatewayConfig(
        address="tcp://127.0.0.1:*", http_address="http://127.0.0.1:0", grpc_address="grpc://127.0.0.1:1"
    )
    with pytest.raises(OSError, match=r"grpc://127.0.0.1:1"):
        server.run(config, threading.Event())
    assert bench.closed.is_set()


def test_nothing_is_served_without_an_address(bench: Bench) -> None:
    with fake_cluster() as cluster, serving(cluster.address) as addresses:
        assert (addresses.http, addresses.grpc, addresses.metrics) == ("", "", "")
    assert bench.started.empty()
