"""Clients of the gateway's own host and user, which find the way past ZeroMQ by themselves."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

import mainspring
from mainspring import Client
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.verbs.keys import curve
from mainspring.client import transports
from mainspring.client.channel import Channel
from mainspring.client.connection import Connection
from mainspring.gateway import local_clients
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from mainspring.messages.roles import Role
from mainspring.transport.bounds import Delivery
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, wait_until
from tests.gateway.raw import RawLocal
from tests.patience import PATIENCE_S

X = np.arange(4, dtype=np.float32).reshape(1, 4)
HEADER = TensorHeader("data", "float32", (1, 4))


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def welcomed(connection: Connection) -> bool:
    connection.poll(20)
    assert connection.receive() is None
    return connection.welcome is not None


def test_a_connection_goes_past_zeromq_where_it_may(cluster: FakeCluster, tmp_path: Path) -> None:
    with gateway(cluster.address, local_clients=True) as address:
        for offered in (True, False):
            with Connection(address, local=offered) as connection:
                assert connection.open(PATIENCE_S).protocol == PROTOCOL_VERSION
                assert connection.is_local is offered
        port = address.rpartition(":")[2]
        with Connection(f"tcp://localhost:{port}") as connection:
            connection.open(PATIENCE_S)
            assert connection.is_local
    with gateway(cluster.address, local_clients=False) as address, Connection(address) as connection:
        connection.open(PATIENCE_S)
        assert not connection.is_local
    key = tmp_path / "gateway.key"
    curve(key)
    options = {"address": "tcp://0.0.0.0:*", "curve_key": str(key), "local_clients": True}
    with gateway(cluster.address, **options) as address:
        port = address.rpartition(":")[2]
        with Connection(f"tcp://127.0.0.1:{port}") as connection:
            connection.open(PATIENCE_S)
            assert connection.is_local


def test_a_gateway_that_starts_again_is_found_again(cluster: FakeCluster) -> None:
    """First over ZeroMQ, which waits for it, and from there past it."""
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with Connection(address) as connection:
        assert not connection.is_local
        for expected in (True, False, True):
            with gateway(cluster.address, address=address, local_clients=expected):
                wait_until(lambda: welcomed(connection))
                assert connection.is_local is expected
                lost = connection.link_lost
            wait_until(lambda: not welcomed(connection))
            assert connection.link_lost == lost + 1


def test_a_client_goes_on_when_its_gateway_starts_again(cluster: FakeCluster) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with Client(address, connect_timeout_s=PATIENCE_S) as client:
        for _ in range(2):
            with gateway(cluster.address, address=address, local_clients=True):
                wait_until(lambda: len(client.models()) >= 5)
                np.testing.assert_array_equal(client.infer("double", {"data": X})["twice"], X * 2)
                lost = client.submit("hold", {"data": X})
                wait_until(lambda: cluster.arrivals and cluster.arrivals[-1].model == "hold")
            with pytest.raises((mainspring.GatewayUnreachable, mainspring.Unavailable)):
                lost.result(PATIENCE_S)


def test_many_large_requests_at_once_over_either_way(cluster: FakeCluster) -> None:
    with gateway(cluster.address, local_clients=True) as address, Client(address) as client:
        wait_until(lambda: len(client.models()) >= 5)
        drawn = np.random.default_rng(3)
        asked = [drawn.random((1 + number % 3, 1 << 20), dtype=np.float32) for number in range(12)]
        futures = [client.submit("wide", {"data": each}) for each in asked]
        for given, future in zip(asked, futures, strict=True):
            np.testing.assert_array_equal(future.result(PATIENCE_S)["twice"], given * 2)


def test_hello_comes_first_and_garbage_is_answered(cluster: FakeCluster) -> None:
    with gateway(cluster.address, local_clients=True) as address, RawLocal(address) as client:
        client.send(clients.InferRequest(1, "double", (HEADER,), None), X.tobytes())
        refused = client.receive()
        assert isinstance(refused, clients.ClientRefused)
        assert refused.code == "unknown_session"
        client.send(clients.ClientHello(99, "new"))
        assert isinstance(client.receive(), clients.ClientRefused)
        client.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
        assert isinstance(client.receive(), clients.ClientWelcome)
        assert client.link.send((b"garbage", b"x")) is Delivery.SENT
        refused = client.receive()
        assert isinstance(refused, clients.ClientRefused)
        assert refused.code == "bad_message"
        client.send(clients.InferRequest(2, "double", (HEADER,), None), b"too short")
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (2, Reason.BAD_INPUT)


def test_a_message_beyond_the_limit_ends_its_own_connection(cluster: FakeCluster) -> None:
    options = {"max_message_bytes": 10_000, "local_clients": True}
    with (
        gateway(cluster.address, **options) as address,
        Connection(address) as other,
        RawLocal(address) as client,
    ):
        other.open(PATIENCE_S)
        client.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
        assert isinstance(client.receive(), clients.ClientWelcome)
        client.send(clients.InferRequest(1, "double", (HEADER,), None), bytes(20_000))
        wait_until(client.ended)
        other.send(clients.ListModels(3))
        wait_until(lambda: other.poll(10) and other.receive() is not None)


def test_bytes_of_unfinished_messages_are_bounded(cluster: FakeCluster) -> None:
    options = {"max_in_flight_bytes": 1 << 20, "local_clients": True}
    with gateway(cluster.address, **options) as address, RawLocal(address) as client:
        client.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
        assert isinstance(client.receive(), clients.ClientWelcome)
        client.send(clients.InferRequest(1, "double", (HEADER,), None), bytes(2 << 20))
        wait_until(client.ended)


def test_a_client_that_reads_nothing_is_cut_off_and_hurts_nobody(cluster: FakeCluster) -> None:
    options = {"reply_backlog_bytes": 1 << 20, "local_clients": True}
    with (
        gateway(cluster.address, **options) as address,
        Client(address) as other,
        Connection(address) as slow,
    ):
        wait_until(lambda: len(other.models()) >= 5)
        slow.open(PATIENCE_S)
        wide = np.zeros((1, 1 << 20), np.float32)
        header = TensorHeader("data", "float32", wide.shape)
        for key in range(8):
            slow.send(clients.InferRequest(key, "wide", (header,), None), [wide])
        # `poll` sends what waits and reads nothing.
        wait_until(
            lambda: (
                slow.poll(1) is not None and other.status().dropped_messages.get("replies_to_slow_readers", 0)
            )
        )
        np.testing.assert_array_equal(other.infer("double", {"data": X})["twice"], X * 2)
        wait_until(lambda: slow.poll(10) and slow.receive() is None and slow.link_lost)


def test_a_client_that_reads_nothing_for_long_is_given_up(cluster: FakeCluster) -> None:
    options = {"zeromq_write_timeout_ms": 300.0, "local_clients": True}
    with (
        gateway(cluster.address, **options) as address,
        RawLocal(address) as client,
        Client(address) as other,
    ):
        wait_until(lambda: len(other.models()) >= 5)
        client.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
        assert isinstance(client.receive(), clients.ClientWelcome)
        wide = np.zeros((1, 1 << 20), np.float32)
        header = TensorHeader("data", "float32", wide.shape)
        request = clients.InferRequest(1, "wide", (header,), None)
        client.send(request, wide.tobytes())
        wait_until(client.sent)
        # Of the answer the kernel takes some; the rest waits at the gateway, until it gives up.
        before = len(os.listdir("/proc/self/fd"))
        wait_until(lambda: len(os.listdir("/proc/self/fd")) < before)
        np.testing.assert_array_equal(other.infer("double", {"data": X})["twice"], X * 2)
        wait_until(client.ended)


def test_a_client_that_reads_less_than_it_asks_for_stays_connected(cluster: FakeCluster) -> None:
    options = {"zeromq_write_timeout_ms": 300.0, "local_clients": True}
    with gateway(cluster.address, **options) as address, Connection(address) as slow:
        slow.open(PATIENCE_S)
        header = TensorHeader("data", "float32", (1, 1 << 20))
        wide = np.zeros(header.shape, np.float32)
        asked = answered = 0
        ahead_until = monotonic() + 1.5
        while answered < asked or monotonic() < ahead_until:
            # More waits each time that the gateway looks, since every answer read brings another request.
            while asked < answered + 6 + answered // 4 and monotonic() < ahead_until:
                slow.send(clients.InferRequest(asked, "wide", (header,), None), [wide])
                asked += 1
            wait_until(lambda: slow.poll(10))
            received = slow.receive()
            answered += received is not None
            if monotonic() < ahead_until:
                sleep(0.03)
        assert answered == asked
        assert slow.link_lost == 0


def test_tokens_are_asked_for(cluster: FakeCluster, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    file = tmp_path / "tokens.toml"
    file.write_text(f'[[token]]\nname = "one"\nsha256 = "{digest}"\nmodels = ["double"]\n')
    with gateway(cluster.address, local_clients=True, token_file=str(file)) as address:
        with Connection(address, token="") as connection:
            with pytest.raises(mainspring.Unauthenticated):
                connection.open(PATIENCE_S)
            assert connection.is_local
        with Client(address, token="secret") as client:
            wait_until(lambda: list(client.models()))
            assert [each.name for each in client.models()] == ["double"]
            assert client.infer("double", {"data": X})["sum"] == X.sum()
            with pytest.raises(mainspring.Forbidden):
                client.infer("hold", {"data": X})


@pytest.mark.parametrize("role", [Role.WORKER, Role.GATEWAY, Role.OBSERVER])
def test_no_other_role_has_business_there(cluster: FakeCluster, role: Role) -> None:
    with gateway(cluster.address, local_clients=True) as address, RawLocal(address, role) as other:
        assert "has no business here" in other.link.failure


def test_a_name_that_is_taken_leaves_zeromq(cluster: FakeCluster) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(f"\0mainspring-clients/127.0.0.1/{address.rpartition(':')[2]}")
        squatter.listen()
        with (
            gateway(cluster.address, address=address, local_clients=True),
            Connection(address) as connection,
        ):
            # Who has the name says nothing, or something else: that is no gateway.
            connection.open(PATIENCE_S)
            assert not connection.is_local


SQUATS = """
import os, socket, sys
os.setuid(4711)
by_name = socket.socket(socket.AF_UNIX)
by_name.bind(b"\\0mainspring-clients/127.0.0.1/" + sys.argv[1].encode())
by_name.listen()
print("listens", flush=True)
while True:
    taken, _ = by_name.accept()
    print(taken.recv(1000), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_nothing_is_said_to_another_user_s_process(cluster: FakeCluster) -> None:
    """Not the token above all, which ZeroMQ's client would send to who has the port."""
    port = free_ports(1)[0]
    address = f"tcp://127.0.0.1:{port}"
    other = subprocess.Popen([sys.executable, "-c", SQUATS, str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "listens\n"
        with (
            gateway(cluster.address, address=address, local_clients=True),
            Connection(address, token="secret") as connection,
        ):
            connection.open(PATIENCE_S)
            assert not connection.is_local
    finally:
        other.send_signal(signal.SIGKILL)
        heard, _ = other.communicate()
    assert set(heard.split()) <= {"b''"}, "the client has closed it without a word"


def test_who_finds_it_full_uses_zeromq(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_clients, "local_share", lambda _: 1)
    with gateway(cluster.address, local_clients=True) as address, Connection(address) as first:
        first.open(PATIENCE_S)
        assert first.is_local
        with Connection(address) as second:
            second.open(PATIENCE_S)
            assert not second.is_local


def test_a_caller_may_wait_for_its_descriptors(cluster: FakeCluster) -> None:
    with gateway(cluster.address, local_clients=True) as address, Connection(address) as connection:
        connection.open(PATIENCE_S)
        assert not connection.ready()
        timer = threading.Timer(0.05, lambda: connection.send(clients.ListModels(1)))
        timer.start()
        assert select.select(connection.descriptors, [], [], PATIENCE_S)[0]
        assert connection.ready()
        received = connection.receive()
        assert received is not None
        assert isinstance(received[0], clients.ModelList)
        timer.join()
        assert not connection.ready()


def test_who_wakes_the_connection_is_heard_whatever_is_called_meanwhile(cluster: FakeCluster) -> None:
    """The kernel tells of it once; a call that finds nothing else must not keep that to itself."""
    read, write = os.pipe()
    with (
        gateway(cluster.address, local_clients=True) as address,
        Connection(address, wakes=read) as connection,
    ):
        connection.open(PATIENCE_S)
        assert connection.is_local
        assert not connection.poll(0)
        os.write(write, b"w")
        assert connection.receive() is None
        assert connection.poll(0)
        assert not connection.poll(0)
        os.write(write, b"w")
        assert connection.ready()
        assert connection.poll(0)
    os.close(read)
    os.close(write)


def test_a_quiet_connection_asks_for_a_sign_of_life_and_goes_on(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "QUIET_NS", 20_000_000)
    asked: list[int] = []
    note = transports.Heartbeat.asked

    def noted(self: transports.Heartbeat, now_ns: int) -> None:
        asked.append(now_ns)
        note(self, now_ns)

    monkeypatch.setattr(transports.Heartbeat, "asked", noted)
    with gateway(cluster.address, local_clients=True) as address, Client(address) as client:
        wait_until(lambda: len(client.models()) >= 5)
        before = len(asked)
        # Its thread waits for nothing else meanwhile, and each answer lets it ask again.
        wait_until(lambda: len(asked) > before + 5)
        assert connection_of(client).link_lost == 0
        assert connection_of(client).is_local
        assert client.infer("double", {"data": X})["sum"] == X.sum()


def connection_of(client: Client) -> Connection:
    assert isinstance(client._channel, Channel)
    return client._channel._connection


STANDS = """
import sys, threading
from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
config = GatewayConfig(controller_address=sys.argv[1], address=sys.argv[2], local_clients=True)
server.run(config, threading.Event(), lambda _: print("serves", flush=True))
"""


def test_a_gateway_that_stands_still_is_noticed_and_found_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before a call's guard would end it."""
    monkeypatch.setattr(transports, "QUIET_NS", 100_000_000)
    monkeypatch.setattr(transports, "PATIENCE_NS", 400_000_000)
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-c", STANDS, cluster.address, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "serves\n"
            with Client(address, connect_timeout_s=PATIENCE_S) as client:
                wait_until(lambda: len(client.models()) >= 5)
                assert connection_of(client).is_local
                process.send_signal(signal.SIGSTOP)
                lost = client.submit("double", {"data": X}, slo_ms=60_000)
                with pytest.raises(mainspring.GatewayUnreachable, match="broke before the reply"):
                    lost.result(PATIENCE_S)
                process.send_signal(signal.SIGCONT)
                assert client.infer("double", {"data": X}, slo_ms=60_000)["sum"] == X.sum()
        finally:
            process.kill()
