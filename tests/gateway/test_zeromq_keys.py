"""Who may come in over ZeroMQ: by a listed key of CURVE, as the same user, or over a keyless loopback."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from mainspring import Client, GatewayUnreachable, Unauthenticated
from mainspring.client.connection import Connection
from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import encode
from mainspring.transport.addresses import parse_tcp
from mainspring.transport.config import TransportConfig
from mainspring.transport.curve import ipc_path, list_client, read_client_keys
from mainspring.transport.handshake_rate import HandshakeRate
from mainspring.transport.tokens import token_sha256
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, wait_until
from tests.gateway.raw import Raw, counts
from tests.gateway.streams import GREETING, Stream, header
from tests.gateway.test_encrypted import recorded
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

TOKEN = "ms_a_token_that_nobody_is_to_see_on_the_way"
PATTERN = b"a tensor that only gateway and worker are to see".ljust(64, b".")[:64]
X = np.frombuffer(PATTERN[:32], np.float32).reshape(2, 4)
NOWHERE = "tcp://127.0.0.1:1"
MIB = 1 << 20
CURVE_GREETING = GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32)


class Keys:
    """The gateway's file, a listed client's, and one's that is not listed."""

    def __init__(self, folder: Path) -> None:
        public, secret = zmq.curve_keypair()
        self.gateway, self.listed, self.other = (folder / name for name in ("gateway", "listed", "other"))
        self._write(self.gateway, secret)
        (folder / "gateway.clients").touch()
        for path in (self.listed, self.other):
            self._write(path, zmq.curve_keypair()[1] + b"\n" + public)
        self.list(self.listed)

    def _write(self, path: Path, keys: bytes) -> None:
        path.write_bytes(keys)
        path.chmod(0o600)

    def list(self, path: Path) -> None:
        list_client(self.gateway, read_client_keys(path).public, path.name)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def refused_at(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port_of(address))) != 0


# --- keys ---


def test_requests_are_served_and_nothing_of_them_is_seen_on_the_way(keys: Keys) -> None:
    options = {"curve_key": str(keys.gateway), "launcher_token_sha256": token_sha256(TOKEN)}
    with (
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller),
        gateway(controller, **options) as address,
        recorded(port_of(address)) as (relayed, passed),
        Client(relayed, token=TOKEN, curve_key=str(keys.listed)) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), PATIENCE_S)
        futures = [client.submit("a", {"data": X}, slo_ms=20_000) for _ in range(200)]
        assert all(future.result(PATIENCE_S)["sum"].shape == (2,) for future in futures)
    assert len(passed) > 10_000
    for seen in (TOKEN.encode(), PATTERN[:32], b"client_hello", b"infer"):
        assert seen not in passed


@pytest.mark.parametrize("shown", ["", "other"])
def test_a_client_without_a_listed_key_reaches_nothing(cluster: FakeCluster, keys: Keys, shown: str) -> None:
    options = {"curve_key": str(keys.gateway)}
    with (
        gateway(cluster.address, **options) as address,
        Client(address, curve_key=str(keys.listed)) as served,
    ):
        file = str(keys.other) if shown else ""
        with (
            Client(address, curve_key=file, connect_timeout_s=PATIENCE_S) as client,
            pytest.raises(Unauthenticated, match="clients whose key of CURVE it knows"),
        ):
            client.models()
        assert "unknown_clients" not in served.status().dropped_messages
        if shown:
            keys.list(keys.other)
            with Client(address, curve_key=file) as client:
                assert client.models()


def test_a_client_of_another_gateway_s_key_is_told_nothing(cluster: FakeCluster, keys: Keys) -> None:
    secret, _ = keys.listed.read_bytes().split()
    keys.listed.write_bytes(secret + b"\n" + zmq.curve_keypair()[0])
    with (
        gateway(cluster.address, curve_key=str(keys.gateway)) as address,
        Client(address, curve_key=str(keys.listed), connect_timeout_s=0.5) as client,
        pytest.raises(GatewayUnreachable),
    ):
        client.models()


def test_a_gateway_without_a_key_refuses_those_who_encrypt(keys: Keys) -> None:
    with (
        gateway(NOWHERE) as address,
        Client(address, curve_key=str(keys.listed), connect_timeout_s=PATIENCE_S) as client,
        pytest.raises(Unauthenticated, match="CURVE"),
    ):
        client.status()


@pytest.mark.parametrize("text", ["short", "x" * 39 + " ", "\u00fc" * 40, "x" * 40])
def test_a_file_without_keys_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="holds no keys of a client"):
        Client("tcp://127.0.0.1:7400", curve_key=str(path))
    path.chmod(0o644)
    with pytest.raises(ValueError, match="is open to others"):
        Client("tcp://127.0.0.1:7400", curve_key=str(path))
    with pytest.raises(ValueError, match="can't be read"):
        Client("tcp://127.0.0.1:7400", curve_key=str(tmp_path / "none"))


def test_a_flood_of_strangers_in_the_handshake_is_never_kept(cluster: FakeCluster, keys: Keys) -> None:
    options = {"curve_key": str(keys.gateway)}
    with (
        gateway(cluster.address, **options) as address,
        Client(address, curve_key=str(keys.listed)) as served,
    ):
        wait_until(served.models)
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(8):
            with Stream(address, handshake=False) as peer:
                peer.send(CURVE_GREETING)
                peer.try_to_send(header(256 * MIB))
                assert not all(peer.try_to_send(bytes(4 * MIB)) for _ in range(63))
                assert served.infer("double", {"data": X[:1]})["sum"] == X[:1].sum()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 160 << 10


def test_one_host_begins_a_bounded_number_of_handshakes(
    cluster: FakeCluster, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HandshakeRate, "limits", TransportConfig(handshakes_at_once=3, handshakes_per_s=1))
    with (
        gateway(cluster.address, curve_key=str(keys.gateway)) as address,
        Client(address, curve_key=str(keys.listed)) as served,
        ExitStack() as stack,
    ):
        wait_until(served.models)

        def two_refused() -> bool:
            # One more a second may begin: on a slow host the first ones alone prove nothing.
            stack.enter_context(Stream(address, handshake=False)).send(CURVE_GREETING)
            return served.status().dropped_messages.get("handshakes_refused", 0) >= 2

        wait_until(two_refused)


def start(**options: object) -> None:
    """Start a gateway that stops at once; raise OSError if it can't listen."""
    stop = threading.Event()
    stop.set()
    server.run(msgspec.convert({"controller_address": NOWHERE, **options}, GatewayConfig), stop)


def test_beyond_this_host_nobody_is_served_without_keys() -> None:
    with pytest.raises(OSError, match="every client needs a key of CURVE"):
        start(address="tcp://0.0.0.0:*")


# --- the same user ---


def welcomed(connection: Connection) -> bool:
    connection.poll(20)
    connection.receive()
    return connection.welcome is not None


def test_without_keys_it_serves_the_same_user_alone(cluster: FakeCluster) -> None:
    with gateway(cluster.address, keyless_loopback=GatewayConfig().keyless_loopback) as address:
        assert refused_at(address)
        path = ipc_path(parse_tcp(address))
        assert path is not None
        assert path.parent.stat().st_mode & 0o777 == 0o700
        with Raw(f"ipc://{path}") as client, Connection(address, local=False) as connection:
            client.ready(cluster)
            client.infer(1)
            assert isinstance(client.receive(), clients.InferReply)
            connection.open(PATIENCE_S)
            assert "unknown_clients" not in counts(client)
    assert not path.exists()


def test_its_port_is_nobody_else_s(cluster: FakeCluster) -> None:
    with gateway(cluster.address, keyless_loopback=False) as address:
        with pytest.raises(OSError, match="is another gateway running there"):
            start(address=address)
        with Connection(address, local=False) as connection:
            connection.open(PATIENCE_S)


def test_a_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"mainspring-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OSError, match="is not this user's alone"):
        start(address="tcp://127.0.0.1:*")


ANOTHER = """
import os, sys, zmq
os.setuid(4711)
client = zmq.Context().socket(zmq.DEALER)
client.linger = 0
client.connect(sys.argv[1])
client.send(bytes.fromhex(sys.argv[2]))
print("answered" if client.poll(1000) else "silence", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_s_connection_is_refused_whatever_the_folder_s_mode(cluster: FakeCluster) -> None:
    hello = encode(clients.ClientHello(PROTOCOL_VERSION, "x")).hex()
    with gateway(cluster.address, keyless_loopback=False) as address:
        path = ipc_path(parse_tcp(address))
        assert path is not None
        path.parent.chmod(0o755)
        path.chmod(0o777)
        try:
            words = [sys.executable, "-c", ANOTHER, f"ipc://{path}", hello]
            said = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
        finally:
            path.parent.chmod(0o700)
        assert said.stdout == "silence\n"
        with Raw(f"ipc://{path}") as client:
            assert "unknown_clients" not in counts(client)


def test_a_client_that_waits_finds_a_gateway_that_starts_in_either_way(cluster: FakeCluster) -> None:
    with gateway(cluster.address, keyless_loopback=False) as address:
        pass
    with Connection(address, local=False) as connection:
        for keyless in (False, True, False):
            with gateway(cluster.address, address=address, keyless_loopback=keyless):
                wait_until(partial(welcomed, connection))
            wait_until(lambda: not welcomed(connection))


def test_a_folder_for_temporary_files_that_is_too_long_for_a_socket_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = ipc_path(parse_tcp("tcp://127.0.0.1:7400"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 30)))
    other = ipc_path(parse_tcp("tcp://[::1]:65535"))
    assert path is not None
    assert other is not None
    assert other.parent == Path("/tmp") / f"mainspring-{os.geteuid()}"
    assert len(str(other)) <= 107
