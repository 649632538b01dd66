"""The gateway's process on real sockets: controllers that are lost, workers that are odd, an orderly stop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from time import monotonic_ns

import msgspec
import pytest

from mainspring import Client
from mainspring.client.connection import Connection
from mainspring.client.errors import ControllerUnreachable
from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.server import Addresses
from mainspring.messages import PROTOCOL_VERSION, clients, peers
from mainspring.messages.codes import Reason
from mainspring.traces.replayer import list_models
from mainspring.transport.hub import Hub
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, make_spec, wait_until
from tests.gateway.raw import Raw, counts
from tests.patience import PATIENCE_S


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def test_a_hello_follows_at_once_when_the_connection_opens(cluster: FakeCluster) -> None:
    hub = Hub()
    try:
        driver = GatewayDriver(hub, GatewayConfig(controller_address=cluster.address))
        # There is no connection yet, so this hello is lost; no later tick sends another one.
        driver.tick(monotonic_ns())

        def ready() -> bool:
            for port in hub.wait(1_000_000):
                driver.serve(port, 100)
            return driver.told.ready

        wait_until(ready)
    finally:
        hub.close()


def test_a_controller_that_comes_back_gets_what_is_pending(cluster: FakeCluster) -> None:
    quick = {"hello_interval_ms": 50.0, "controller_timeout_ms": 400.0}
    with gateway(cluster.address, **quick) as address, Raw(address) as client:
        client.ready(cluster)
        client.infer(1, "hold", slo_ns=20_000_000_000)
        wait_until(lambda: cluster.arrivals)
        where = cluster.address
        cluster.stop()
        client.infer(2, "double", slo_ns=10_000_000)
        first = client.receive()
        assert isinstance(first, clients.ErrorReply)
        assert (first.key, first.reason) in ((2, Reason.CONTROLLER_UNREACHABLE), (2, Reason.OVERLOADED))
        with fake_cluster(address=where) as second:
            wait_until(lambda: second.arrivals)
            [again] = second.arrivals
            assert again.model == "hold"
            assert again.left_ns is not None
            assert again.left_ns < 20_000_000_000
            assert again.request_id != cluster.arrivals[0].request_id
            second.do(lambda: second.dispatch(again.request_id))
            answer = client.receive()
            assert isinstance(answer, clients.InferReply)
            assert answer.key == 1


def test_a_controller_that_forgot_the_gateway_is_greeted_again(cluster: FakeCluster) -> None:
    with gateway(cluster.address, hello_interval_ms=20.0) as address, Raw(address) as client:
        client.ready(cluster)
        hellos = len(cluster.hellos)
        cluster.do(lambda: setattr(cluster, "forget", True))
        client.infer(1, "double")
        answer = client.receive()
        assert isinstance(answer, clients.InferReply)
        assert len(cluster.hellos) > hellos


def test_a_silent_controller_is_lost_and_clients_are_told(cluster: FakeCluster) -> None:
    quick = {"hello_interval_ms": 50.0, "controller_timeout_ms": 200.0}
    with gateway(cluster.address, **quick) as address, Raw(address) as client:
        client.ready(cluster)
        cluster.do(lambda: setattr(cluster, "silent", True))
        client.send(clients.GetStatus(5))
        asked = client.receive()
        assert isinstance(asked, clients.ErrorReply)
        assert asked.reason is Reason.CONTROLLER_UNREACHABLE
        client.infer(1, "double", slo_ns=10_000_000)
        refused = client.receive()
        assert isinstance(refused, clients.ErrorReply)
        assert refused.reason is Reason.CONTROLLER_UNREACHABLE


def test_a_gateway_that_the_controller_refuses_says_why(cluster: FakeCluster) -> None:
    cluster.refuse_code = "protocol_mismatch"
    with gateway(cluster.address) as address, Raw(address) as client:
        wait_until(lambda: cluster.hellos)

        def told() -> bool:
            client.infer(1)
            reply = client.receive()
            assert isinstance(reply, clients.ErrorReply)
            assert reply.reason is Reason.CONTROLLER_UNREACHABLE
            return "protocol_mismatch" in reply.detail

        wait_until(told)


def test_a_gateway_without_a_controller_says_so_to_clients_and_once_in_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quick = {"hello_interval_ms": 10.0, "controller_timeout_ms": 40.0}
    where = "tcp://127.0.0.1:9"
    with gateway(where, **quick) as address, Raw(address) as client:
        client.send(clients.ListModels(1))
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (1, Reason.CONTROLLER_UNREACHABLE)
        assert where in reply.detail
        with Client(address) as user, pytest.raises(ControllerUnreachable):
            user.models()
        with Connection(address) as connection:
            connection.open(5)
            with pytest.raises(ControllerUnreachable):
                list_models(connection, 5)
        wait_until(lambda: f"no controller answers at {where}" in caplog.text)
        client.send(clients.ListModels(2))
        client.receive()
    assert caplog.text.count("no controller answers") == 1


def test_a_refusal_that_is_repeated_is_logged_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuse_code = "name_taken"
    with gateway(cluster.address, hello_interval_ms=5.0):
        wait_until(lambda: "name_taken" in caplog.text)
        more = len(cluster.hellos) + 5
        wait_until(lambda: len(cluster.hellos) > more)
        assert caplog.text.count("name_taken") == 1
        cluster.refuse_code = "too_many_peers"
        wait_until(lambda: "too_many_peers" in caplog.text)
    assert "no controller answers" not in caplog.text


def test_garbage_from_the_controller_and_the_worker_is_counted(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as client:
        client.ready(cluster)
        client.infer(1)
        client.receive()
        cluster.do(lambda: cluster.controller.send([cluster._gateway, b"\xff\x00"]))
        cluster.tell(peers.WorkerUp("odd", "no://address"))
        cluster.tell(peers.ModelUp(msgspec.structs.replace(make_spec("odd"), batch_sizes=())))
        cluster.tell(peers.AdminReply(12345))
        cluster.tell(peers.Dispatch(9, "nobody", (1, 2), (False,), 1))
        cluster.tell(peers.Dispatch(9, "nobody", (1,), (False,), 1))
        seen = counts(client)
        for name in (
            "bad_messages_from_controller",
            "bad_worker_addresses",
            "bad_models",
            "late_admin_replies",
        ):
            assert seen[name] == 1, name
        assert seen["bad_dispatches"] == 1
        assert seen["unsent_to_workers"] == 1
        client.infer(2)
        assert isinstance(client.receive(), clients.InferReply)


def test_a_number_that_no_gateway_can_have_ends_the_session_and_the_next_hello_begins_another(
    cluster: FakeCluster,
) -> None:
    with gateway(cluster.address) as address, Raw(address) as client:
        client.ready(cluster)
        hellos = len(cluster.hellos)
        cluster.tell(peers.Welcome(PROTOCOL_VERSION, 1 << 40))
        wait_until(lambda: len(cluster.hellos) > hellos)
        client.infer(1)
        assert isinstance(client.receive(), clients.InferReply)


def test_a_stop_lets_requests_end_and_refuses_new_ones(cluster: FakeCluster) -> None:
    stop = threading.Event()
    ready: queue.Queue[Addresses] = queue.Queue()
    config = GatewayConfig(
        address="tcp://127.0.0.1:*", keyless_loopback=True, controller_address=cluster.address
    )
    thread = threading.Thread(target=server.run, args=(config, stop, ready.put))
    thread.start()
    with Raw(ready.get(timeout=PATIENCE_S).zeromq) as client:
        client.ready(cluster)
        client.infer(1, "hold")
        wait_until(lambda: cluster.arrivals)
        stop.set()

        def refused() -> bool:
            client.infer(2, "hold", slo_ns=100_000_000)
            reply = client.receive()
            assert isinstance(reply, clients.ErrorReply)
            return reply.reason is Reason.SHUTTING_DOWN

        wait_until(refused)
        cluster.do(lambda: cluster.dispatch(cluster.arrivals[0].request_id))
        answer = client.receive()
        assert isinstance(answer, clients.InferReply)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    wait_until(lambda: cluster.goodbyes)


def test_what_does_not_end_in_time_is_answered_when_the_gateway_stops(cluster: FakeCluster) -> None:
    with Raw.__new__(Raw) as client:
        with gateway(cluster.address, drain_timeout_ms=100.0) as address:
            client.__init__(address)  # type: ignore[misc]
            client.ready(cluster)
            client.infer(1, "hold")
            wait_until(lambda: cluster.arrivals)
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert reply.reason is Reason.SHUTTING_DOWN


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"address": "nonsense"}, "can't listen at nonsense"),
        ({"controller_address": "nonsense"}, "not an address of the controller"),
    ],
)
def test_addresses_that_are_none_are_clear_errors(settings: dict[str, str], says: str) -> None:
    with pytest.raises(OSError, match=says):
        server.run(GatewayConfig(**{"address": "tcp://127.0.0.1:*", **settings}), threading.Event())  # type: ignore[arg-type]


def test_a_port_in_use_is_a_clear_error(cluster: FakeCluster) -> None:
    with (
        gateway(cluster.address) as address,
        pytest.raises(OSError, match=rf"{address}.*in use.*another gateway"),
    ):
        server.run(GatewayConfig(address=address), threading.Event())
