"""Strange clients on real sockets: garbage, wrong versions, those that vanish or do not read."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mainspring.client.connection import Connection
from mainspring.gateway.config import GatewayConfig
from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, make_spec, wait_until
from tests.gateway.raw import HEADER, Raw, counts


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def test_hello_comes_first(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address, hello=False) as client:
        client.infer(1)
        refused = client.receive()
        assert isinstance(refused, clients.ClientRefused)
        assert refused.code == "unknown_session"
        client.send(clients.ClientHello(PROTOCOL_VERSION, "raw"))
        welcome = client.receive()
        assert isinstance(welcome, clients.ClientWelcome)
        assert welcome.max_in_flight == GatewayConfig().max_in_flight_per_connection


def test_another_protocol_version_is_refused_with_both_versions(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address, hello=False) as client:
        client.send(clients.ClientHello(99, "new"))
        refused = client.receive()
        assert isinstance(refused, clients.ClientRefused)
        assert refused.code == "protocol_mismatch"
        assert "version 1, the client 99" in refused.detail


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (clients.ClientHello(PROTOCOL_VERSION, "raw", token="wrong"), "unauthenticated"),
        (clients.ClientHello(99, "raw", token="secret"), "protocol_mismatch"),
    ],
)
def test_a_refused_hello_ends_the_session_before_it(
    cluster: FakeCluster, tmp_path: Path, hello: clients.ClientHello, code: str
) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    file = tmp_path / "tokens.toml"
    file.write_text(f'[[token]]\nname = "one"\nsha256 = "{digest}"\nmodels = ["*"]\n')
    good = clients.ClientHello(PROTOCOL_VERSION, "raw", token="secret")
    with (
        gateway(cluster.address, token_file=str(file)) as address,
        Raw(address, hello=False) as client,
    ):
        client.send(good)
        assert isinstance(client.receive(), clients.ClientWelcome)
        client.ready(cluster)
        client.infer(1, "hold")
        wait_until(lambda: cluster.arrivals)
        client.send(hello)
        refused = client.receive()
        assert isinstance(refused, clients.ClientRefused)
        assert refused.code == code
        client.infer(2)
        refused = client.receive()
        assert isinstance(refused, clients.ClientRefused)
        assert refused.code == "unknown_session"
        wait_until(lambda: cluster.cancels)
        client.send(good)
        assert isinstance(client.receive(), clients.ClientWelcome)
        client.infer(3)
        assert isinstance(client.receive(), clients.InferReply)


def test_garbage_is_answered_and_counted_and_hurts_nobody(cluster: FakeCluster) -> None:
    generator = random.Random(7)
    good = encode(clients.InferRequest(5, "double", (HEADER,), None))
    with gateway(cluster.address) as address, Raw(address) as other, Raw(address) as client:
        other.ready(cluster)
        sent = 3_000
        for number in range(sent):
            kind = number % 4
            frames = [generator.randbytes(generator.randrange(60)) for _ in range(generator.randrange(1, 4))]
            if kind == 1:
                # A real message with a byte changed, which may even still be one.
                at = generator.randrange(len(good))
                frames[0] = good[:at] + generator.randbytes(1) + good[at + 1 :]
            elif kind == 2:
                frames[0] = good[: generator.randrange(len(good))]
            elif kind == 3:
                frames[0] = msgspec.msgpack.encode({"type": "infer_request", "key": generator.randrange(9)})
            client.socket.send_multipart(frames)
        replies = [client.receive() for _ in range(sent)]
        kinds = clients.ErrorReply | clients.ClientRefused | clients.InferReply
        assert all(isinstance(each, kinds) for each in replies)
        bad = [
            each for each in replies if isinstance(each, clients.ErrorReply) and each.reason == "bad_message"
        ]
        assert len(bad) >= sent // 4
        assert counts(other)["bad_messages_from_clients"] > sent // 2
        other.infer(1)
        assert isinstance(other.receive(), clients.InferReply)


def test_a_message_of_too_many_frames_is_bad(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as client:
        client.send(clients.InferRequest(3, "double", (HEADER,), None), *[b"x"] * 5_000)
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (3, Reason.BAD_MESSAGE)


def test_a_frame_beyond_the_limit_breaks_only_its_own_connection(cluster: FakeCluster) -> None:
    with gateway(cluster.address, max_message_bytes=10_000) as address, Raw(address) as other:
        other.ready(cluster)
        with Connection(address) as connection:
            connection.open(5)
            connection.socket.send(bytes(20_000))
            wait_until(lambda: connection.poll(20) and connection.receive() is None and connection.link_lost)
        other.infer(1)
        assert isinstance(other.receive(), clients.InferReply)


def test_a_key_in_flight_is_refused_and_its_first_request_answered(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as client:
        client.ready(cluster)
        client.infer(1, "hold")
        client.infer(1, "double")
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (1, Reason.DUPLICATE_KEY)
        wait_until(lambda: cluster.arrivals)
        cluster.do(lambda: cluster.dispatch(cluster.arrivals[0].request_id))
        answer = client.receive()
        assert isinstance(answer, clients.InferReply)
        assert answer.key == 1


def test_cancelling_gets_one_reply(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as client:
        client.ready(cluster)
        client.infer(1, "hold")
        client.send(clients.CancelRequest(1))
        client.send(clients.CancelRequest(1))
        client.send(clients.CancelRequest(999))
        client.infer(2)
        first, second = client.receive(), client.receive()
        assert isinstance(first, clients.ErrorReply)
        assert (first.key, first.reason) == (1, Reason.CANCELLED)
        assert isinstance(second, clients.InferReply)
        # Its dispatch crosses the cancellation: the worker is told that nothing comes.
        cluster.do(lambda: cluster.dispatch(cluster.arrivals[0].request_id))
        wait_until(lambda: any(each.withdrawn for each in cluster.inputs))


def test_a_client_that_vanishes_is_forgotten(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as other:
        other.ready(cluster)
        with Raw(address) as client:
            client.infer(1, "hold")
            client.infer(2, "hold")
            wait_until(lambda: len(cluster.arrivals) == 2)
        # Nothing has to be sent to it first.
        wait_until(lambda: {each.request_id for each in cluster.arrivals} <= set(cluster.cancels))
        assert counts(other)["abandoned"] == 2


def read_until_cut(client: Raw) -> list[clients.ToClient]:
    """Return what a client finds that has been cut off, and says something over its next connection."""
    replies: list[clients.ToClient] = []
    while not replies or not isinstance(replies[-1], clients.ClientRefused):
        if not client.socket.poll(50):
            client.send(clients.ListModels(0))
        else:
            replies.append(client.receive())
    assert replies[-1].code == "unknown_session"
    return replies


def test_a_client_that_does_not_read_is_cut_off(cluster: FakeCluster) -> None:
    with gateway(cluster.address, reply_backlog_messages=50) as address, Raw(address) as other:
        other.ready(cluster)
        with Raw(address, read_ahead=10) as client:
            for key in range(20_000):
                client.send(clients.ListModels(key))
                if key % 500 == 0 and "replies_to_slow_readers" in counts(other):
                    break
            wait_until(lambda: "replies_to_slow_readers" in counts(other))
            replies = read_until_cut(client)
            assert len(replies) < 20_000
        other.infer(1)
        assert isinstance(other.receive(), clients.InferReply)


def test_large_outputs_that_are_not_read_are_bounded_in_bytes(cluster: FakeCluster) -> None:
    wide = TensorHeader("data", "float32", (1, 1 << 20))
    with gateway(cluster.address, reply_backlog_bytes=20 << 20) as address, Raw(address) as other:
        other.ready(cluster)
        with Raw(address, read_ahead=1) as client:
            for key in range(200):
                client.send(clients.InferRequest(key, "wide", (wide,), None), bytes(4 << 20))
                if key % 10 == 0 and "replies_to_slow_readers" in counts(other):
                    break
            wait_until(lambda: "replies_to_slow_readers" in counts(other))
            replies = read_until_cut(client)
            assert len(replies) < 100
        other.infer(1)
        assert isinstance(other.receive(), clients.InferReply)


def test_lists_of_models_that_are_not_read_are_bounded_in_bytes(cluster: FakeCluster) -> None:
    cluster.specs |= {name: make_spec(name) for name in (f"model-{number}" for number in range(200))}
    with gateway(cluster.address, reply_backlog_bytes=1 << 20) as address, Raw(address) as other:
        other.ready(cluster)
        with Raw(address, read_ahead=1) as client:
            for key in range(1_000):
                client.send(clients.ListModels(key))
            wait_until(lambda: "replies_to_slow_readers" in counts(other))
            assert len(read_until_cut(client)) < 900


def test_the_silent_make_room_for_new_clients(cluster: FakeCluster) -> None:
    with gateway(cluster.address, max_connections=2) as address, Raw(address) as busy:
        busy.ready(cluster)
        busy.infer(1, "hold")
        with Raw(address) as idle, Raw(address) as third:
            idle.infer(1)
            refused = idle.receive()
            assert isinstance(refused, clients.ClientRefused)
            third.infer(1)
            assert isinstance(third.receive(), clients.InferReply)
