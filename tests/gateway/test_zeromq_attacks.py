"""Attacks on the gateway's ZeroMQ door: each ends or is refused, and another client is served meanwhile."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from mainspring.messages import PROTOCOL_VERSION, clients
from mainspring.messages.codec import TO_CLIENT, encode
from mainspring.messages.codes import Reason
from mainspring.messages.peers import TensorHeader
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, wait_until
from tests.gateway.raw import HEADER, Raw, X, counts
from tests.gateway.streams import COMMAND, GREETING, MORE, Stream, command, header, message, ready

MIB = 1 << 20


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def serves(client: Raw, key: int = 1) -> None:
    client.infer(key)
    assert isinstance(client.receive(), clients.InferReply)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(4_096),
        b"\xff" * 4_096,
        GREETING + message(b"no READY"),
        GREETING + ready(b"SUB"),
        GREETING + header(1 << 62, COMMAND),
        GREETING + ready() + header(1 << 62),
        GREETING + ready() + b"\x01\x00" * 1_000_000,
    ],
    ids=["http", "zeros", "ones", "no-ready", "sub", "command", "frame", "million-empty-frames"],
)
def test_what_breaks_the_protocol_ends_its_own_connection(cluster: FakeCluster, data: bytes) -> None:
    with gateway(cluster.address) as address, Raw(address) as other, Stream(address, handshake=False) as peer:
        other.ready(cluster)
        peer.try_to_send(data)
        serves(other)
        assert peer.ended()


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("what", ["one frame", "frames", "empty frames", "messages"])
def test_a_flood_of_strangers_is_never_kept(cluster: FakeCluster, what: str) -> None:
    """Each of them sends until it is cut off, what the gateway would take of a client."""
    flood = {
        "one frame": header(256 * MIB),
        "frames": header(4 * MIB, MORE),
        "empty frames": b"\x01\x00" * MIB,
        "messages": header(4 * MIB),
    }[what]
    data = flood if what == "empty frames" else bytes(4 * MIB)
    with gateway(cluster.address) as address, Raw(address) as other:
        other.ready(cluster)
        before_kib = peak_kib()
        for _ in range(8):
            with Stream(address) as peer:
                went = peer.try_to_send(flood)
                for _ in range(64):
                    went = went and peer.try_to_send(data) and (what != "frames" or peer.try_to_send(flood))
                assert not went
                serves(other)
        assert peak_kib() - before_kib < 160 << 10
        assert "unknown_clients" not in counts(other) or what == "messages"


def test_what_is_larger_than_a_message_may_be_is_refused_by_its_key(cluster: FakeCluster) -> None:
    with gateway(cluster.address, max_message_bytes=MIB) as address, Raw(address) as client:
        client.send(clients.InferRequest(3, "double", (HEADER,), None), *[bytes(MIB // 2)] * 3)
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (3, Reason.BAD_MESSAGE)
        assert "it may have 1,048,576" in reply.detail


def test_a_frame_that_is_too_large_ends_its_connection(cluster: FakeCluster) -> None:
    with gateway(cluster.address, max_message_bytes=MIB) as address, Stream(address, hello=True) as peer:
        peer.send(header(MIB + 1))
        assert peer.ended()


@pytest.mark.parametrize(
    "data", [b"", GREETING[:10], GREETING, GREETING + ready()[:-1]], ids=["0", "10", "64", "ready"]
)
def test_a_slow_handshake_is_given_up(cluster: FakeCluster, data: bytes) -> None:
    with (
        gateway(cluster.address, zeromq_handshake_timeout_ms=50.0) as address,
        Stream(address, handshake=False) as peer,
    ):
        peer.send(data)
        assert peer.ended()


def test_a_connection_between_messages_stays(cluster: FakeCluster) -> None:
    with gateway(cluster.address, zeromq_handshake_timeout_ms=200.0) as address, Raw(address) as other:
        other.ready(cluster)
        # Some of it is later than a handshake may be.
        time.sleep(0.3)
        for key in range(1, 50):
            serves(other, key)
        assert counts(other).get("unknown_clients", 0) == 0


def test_a_peer_that_stops_to_be_heard_after_its_ping_is_given_up(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Stream(address, hello=True) as peer:
        peer.send(command(b"PING", b"\x00\x01hi"))
        flags, body = peer.frame()
        assert (flags & COMMAND, body) == (COMMAND, b"\x04PONGhi")
        assert peer.ended()


def test_a_reader_that_does_not_read_loses_its_connection(cluster: FakeCluster) -> None:
    header = TensorHeader("data", "float32", (1, MIB))
    with gateway(cluster.address, zeromq_write_timeout_ms=100.0) as address, Raw(address) as other:
        other.ready(cluster)
        with Stream(address, hello=True) as peer:
            for key in range(12):
                peer.say(clients.InferRequest(key, "wide", (header,), None), bytes(4 * MIB))
            wait_until(lambda: not peer.try_to_send(command(b"PING", b"\0\0")))
        serves(other)


def test_pings_without_a_reader_pile_up_nothing(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as other, Stream(address) as peer:
        other.ready(cluster)
        peer.socket.settimeout(0.5)
        flood = command(b"PING", b"\0\0" + bytes(16)) * 5_000
        for _ in range(40):
            if not peer.try_to_send(flood):
                break
        serves(other)


def test_strangers_that_do_not_read_are_not_read_any_more(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as other, Stream(address) as peer:
        other.ready(cluster)
        peer.socket.settimeout(0.5)
        sent = 0
        while sent < 4_000 and peer.try_to_send(b"\x00\x00" * 1_000):
            sent += 1
        assert sent < 4_000, "all was read, and answered to nobody"
        serves(other)


# --- who is who ---


def test_connections_without_a_session_make_room(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.gateway.zeromq._SPARE_CONNECTIONS", 2)
    ping = command(b"PING", b"\0\0")
    with gateway(cluster.address, max_connections=2) as address, Raw(address) as other, ExitStack() as stack:
        other.ready(cluster)
        strangers = [stack.enter_context(Stream(address)) for _ in range(3)]
        for each in strangers:
            # Each was heard of just now, and half of a message of it is there.
            each.send(ping + header(100) + b"x")
            each.frame()
        with Stream(address, hello=True):
            assert strangers[0].ended()
            for each in strangers[1:]:
                each.send(bytes(1))
            serves(other)


def dealer(context: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.RCVTIMEO, 30_000)
    socket.connect(address)
    return socket


def ask(socket: zmq.Socket[bytes], request: clients.FromClient) -> clients.ToClient:
    socket.send(encode(request))
    return TO_CLIENT.decode(socket.recv())


def test_a_socket_with_an_identity_of_its_own_gets_no_session(cluster: FakeCluster) -> None:
    """Replies go by it: those of one that is gone could reach another."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with gateway(cluster.address) as address, Raw(address) as other:
            other.ready(cluster)
            socket = dealer(context, address, b"alice")
            for message in (clients.ClientHello(PROTOCOL_VERSION, "x"), clients.RemoveModel(1, "double")):
                refused = ask(socket, message)
                assert isinstance(refused, clients.ClientRefused)
                assert "leave it unset" in refused.detail
            serves(other)
    finally:
        context.destroy(0)


def test_a_session_ends_with_its_connection(cluster: FakeCluster) -> None:
    with gateway(cluster.address) as address, Raw(address) as other:
        other.ready(cluster)
        with Stream(address, hello=True) as peer:
            peer.say(clients.InferRequest(1, "hold", (HEADER,), None), X.tobytes())
            wait_until(lambda: cluster.arrivals)
        wait_until(lambda: cluster.arrivals[0].request_id in cluster.cancels)


# --- clients of ZeroMQ's own library ---


def test_a_req_socket_is_served(cluster: FakeCluster) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with gateway(cluster.address) as address, Raw(address) as other:
            other.ready(cluster)
            socket = context.socket(zmq.REQ)
            socket.setsockopt(zmq.RCVTIMEO, 30_000)
            socket.connect(address)
            assert isinstance(
                ask(socket, clients.ClientHello(PROTOCOL_VERSION, "req")), clients.ClientWelcome
            )
            socket.send_multipart([encode(clients.InferRequest(2, "double", (HEADER,), None)), X.tobytes()])
            reply = TO_CLIENT.decode(socket.recv_multipart()[0])
            assert isinstance(reply, clients.InferReply)
    finally:
        context.destroy(0)


def test_large_messages_and_heartbeats_go_both_ways(cluster: FakeCluster) -> None:
    wide = TensorHeader("data", "float32", (1, MIB))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with gateway(cluster.address) as address, Raw(address) as other:
            other.ready(cluster)
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.RCVTIMEO, 30_000)
            socket.setsockopt(zmq.HEARTBEAT_IVL, 20)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)
            socket.setsockopt(zmq.HEARTBEAT_TTL, 20_000)
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(address)
            assert isinstance(ask(socket, clients.ClientHello(PROTOCOL_VERSION, "d")), clients.ClientWelcome)
            for key in range(20):
                socket.send_multipart(
                    [encode(clients.InferRequest(key, "wide", (wide,), None)), bytes(4 * MIB)]
                )
            replies = [socket.recv_multipart() for _ in range(20)]
            heads = [TO_CLIENT.decode(each[0]) for each in replies]
            assert sorted(each.key for each in heads if isinstance(each, clients.InferReply)) == list(
                range(20)
            )
            assert {len(each[1]) for each in replies} == {4 * MIB}
            assert not monitor.poll(0), "the heartbeats were not answered"
    finally:
        context.destroy(0)


def test_uploads_without_room_are_refused_by_their_keys(cluster: FakeCluster) -> None:
    wide = TensorHeader("data", "float32", (1, MIB))
    with gateway(cluster.address, max_in_flight_bytes=2 * MIB) as address, Raw(address) as client:
        client.ready(cluster)
        client.send(clients.InferRequest(9, "wide", (wide,), None), bytes(4 * MIB))
        reply = client.receive()
        assert isinstance(reply, clients.ErrorReply)
        assert (reply.key, reply.reason) == (9, Reason.OVERLOADED)
