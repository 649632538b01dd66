"""Who is let in: a process of the same user, or one with a certificate, of the right role and name."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from mainspring.transport import listener as listener_module
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import (
    HEAD,
    MAX_BYTES,
    Accepting,
    Connecting,
    Handshake,
    Identity,
    Unproved,
    Violation,
)
from mainspring.transport.hub import Hub
from mainspring.transport.listener import Listener
from tests.blocking import Client, Server
from tests.patience import PATIENCE_S
from tests.transport.raw import admitted, by_tcp, connecting, over_tcp_alone

WORKER, GATEWAY = Identity("worker", b"w0"), Identity("gateway", b"g0")


def talk(one: Handshake, other: Handshake) -> None:
    """Carry what both say to each other until both have said all."""
    to_other, to_one = one.opening, other.opening
    while one.wants or other.wants:
        assert to_one or to_other, "both wait for each other"
        if other.wants and len(to_other) >= other.wants:
            wants = other.wants
            to_one += other.take(to_other[:wants])
            to_other = to_other[wants:]
        if one.wants and len(to_one) >= one.wants:
            wants = one.wants
            to_other += one.take(to_one[:wants])
            to_one = to_one[wants:]


def hear(one: Handshake, said: bytes) -> None:
    """Give one end what the other said."""
    while said:
        wants = one.wants
        one.take(said[:wants])
        said = said[wants:]


def pair(
    trusted: tuple[bool, bool] = (True, True),
    accepts: tuple[str, ...] = ("gateway",),
    expects: Identity | None = WORKER,
) -> tuple[Connecting, Accepting]:
    return Connecting(GATEWAY, trusted[0], expects), Accepting(WORKER, trusted[1], accepts)


def test_a_process_of_the_same_user_is_let_in() -> None:
    one, other = pair()
    talk(one, other)
    assert (one.peer, other.peer) == (WORKER, GATEWAY)


def test_a_certificate_is_enough_if_it_allows_role_and_name() -> None:
    one, other = pair((False, False))
    for each in (one, other):
        each.certify(lambda _: "")
    talk(one, other)
    assert (one.peer, other.peer) == (WORKER, GATEWAY)
    one, other = pair((False, False))
    one.certify(lambda _: "")
    other.certify(lambda who: f"its certificate is not of {who.name.decode()}")
    with pytest.raises(Unproved, match="its certificate is not of g0"):
        talk(one, other)


def test_a_stranger_is_refused_and_told_why() -> None:
    one, other = pair((True, False))
    with pytest.raises(Unproved, match="it is not a process of this user on this host") as caught:
        talk(one, other)
    reply = caught.value.reply
    with pytest.raises(Unproved, match="it refuses this process: it is not a process of this user"):
        hear(one, reply)


def test_a_listener_that_nothing_proves_is_left() -> None:
    """One that accepts everybody, as an attacker's would, learns a role and a name and no more."""
    one, other = pair((False, True))
    with pytest.raises(Unproved, match="the worker does not prove that it belongs to this cluster"):
        talk(one, other)


def test_a_role_that_has_no_business_there_is_refused() -> None:
    one, other = pair(accepts=("worker", "observer"))
    with pytest.raises(Unproved, match="in the role of gateway has no business here"):
        talk(one, other)


@pytest.mark.parametrize("expects", [Identity("controller"), Identity("worker", b"w1")])
def test_a_connector_ends_it_where_somebody_else_is(expects: Identity) -> None:
    one, other = pair(expects=expects)
    with pytest.raises(Unproved, match=r"it is worker 'w0', not"):
        talk(one, other)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / H", "no Mainspring process"),
        (b"MSPG\x03\x01\x00", "it speaks framing 3, this process 4"),
        (b"MSPG\x04\x00\x00", "damaged"),
        (b"MSPG\x04\xff\x00", "damaged"),
    ],
)
def test_what_is_no_handshake_is_ended(data: bytes, why: str) -> None:
    with pytest.raises(Violation, match=why):
        Accepting(WORKER, True, None).take(data)


def test_what_can_not_be_shown_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255 bytes, not 256"):
        Accepting(Identity("worker", b"x" * 256), True, None)


@pytest.mark.parametrize("verdict", [b"\0\1", b"\1\0", b"\2\1"])
def test_a_verdict_that_no_listener_gives_ends_it(verdict: bytes) -> None:
    one, other = pair()
    hear(one, other._own)
    with pytest.raises(Violation, match="damaged"):
        one.take(verdict)


# --- on sockets ---


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(limits=Limits(1 << 26, 1 << 30, 1 << 20))
    yield made
    made.close()


def ends(server: Server, sock: socket.socket) -> bytes:
    """Return what the listener still says before it ends the connection."""
    sock.setblocking(False)
    said, give_up_s = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        if server.poll(5):
            server.receive()
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            return said
        if not data:
            return said
        said += data
    raise AssertionError("the listener keeps the connection")


def test_before_it_is_known_a_connection_costs_some_hundred_bytes(server: Server) -> None:
    raw = by_tcp(server.address)
    raw.sendall(connecting("tool", b"x").opening + bytes(60_000))
    assert b"it is not a process of this user on this host" in ends(server, raw)
    assert not server.listener._channels
    assert MAX_BYTES < 300
    raw.close()


def test_a_handshake_that_stops_halfway_is_given_up_and_keeps_nobody_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "GREETING_NS", 300_000_000)
    opening = connecting("tool", b"half").opening
    halves = [by_tcp(server.address) for _ in range(5)]
    for length, raw in zip((0, 3, HEAD.size, len(opening) - 1, len(opening)), halves, strict=True):
        raw.sendall(opening[:length])
    with admitted(server.address, "tool", b"whole", server.poll) as whole:
        whole.sendall((5).to_bytes(4, "little") + bytes(4) + b"hello")
        assert server.receive() == [b"tool/whole", b"hello"]
        for raw in halves:
            ends(server, raw)
            raw.close()


def test_a_flood_of_half_open_connections_leaves_room_for_those_that_belong(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "MAX_GREETINGS", 8)
    flood = [by_tcp(server.address) for _ in range(100)]
    server.poll(20)
    assert len(server.listener._greeting) <= 8
    with admitted(server.address, "tool", b"late", server.poll):
        assert b"tool/late" in server.listener._peers
    for raw in flood:
        raw.close()


def test_a_message_is_bounded_as_a_whole_before_any_of_it_is_kept(server: Server) -> None:
    """50 parts of 60 MB: each is allowed, all of them are not."""
    seen: list[str] = []
    server.listener.on_violation = seen.append
    raw = admitted(server.address, "tool", b"large", server.poll)
    raw.sendall(
        (10).to_bytes(4, "little") + (50).to_bytes(4, "little") + (60_000_000).to_bytes(8, "little") * 50
    )
    ends(server, raw)
    assert seen == [f"a message of 3000000010 bytes came; at most {4 << 26} are allowed"]
    raw.close()


def test_a_message_that_stops_growing_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.transport.listener.PROGRESS_NS", 200_000_000)
    monkeypatch.setattr("mainspring.transport.listener.LOOK_AGAIN_NS", 100_000_000)
    seen: list[str] = []
    server.listener.on_violation = seen.append
    halves: list[socket.socket] = []
    for sent in (b"\1", (1000).to_bytes(4, "little") + bytes(4), (1000).to_bytes(4, "little") + bytes(104)):
        halves.append(admitted(server.address, "tool", b"%d" % len(halves), server.poll))
        halves[-1].sendall(sent)
    busy = admitted(server.address, "tool", b"busy", server.poll)
    for raw in halves:
        busy.sendall((2).to_bytes(4, "little") + bytes(4) + b"ok")
        ends(server, raw)
        raw.close()
    assert seen == ["a message of it stopped halfway"] * 3
    assert list(server.listener._peers) == [b"tool/busy"]
    busy.close()


def test_a_message_that_grows_slowly_is_received(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.transport.listener.PROGRESS_NS", 100_000_000)
    monkeypatch.setattr("mainspring.transport.listener.LOOK_AGAIN_NS", 400_000_000)
    size = 20 * (1 << 17)
    raw = admitted(server.address, "tool", b"slow", server.poll)
    raw.sendall(size.to_bytes(4, "little") + bytes(4))
    for _ in range(20):
        raw.sendall(bytes(1 << 17))
        server.poll(30)
    assert len(server.receive()[1]) == size
    raw.close()


def test_each_role_has_its_own_bounds() -> None:
    hub = Hub()
    limits = {"observer": Limits(100, 1 << 20, 100), "worker": Limits(1 << 20, 1 << 20, 100)}
    listener = Listener(hub, "tcp://127.0.0.1:*", limits, Pass("controller"))
    seen: list[str] = []
    listener.on_violation = seen.append
    for role in limits:
        with admitted(listener.address, role, b"x", lambda: hub.wait(1_000_000)) as raw:
            raw.sendall((500).to_bytes(4, "little") + bytes(4) + bytes(500))
            received = None
            for _ in range(50):
                hub.wait(1_000_000)
                received = received or listener.receive()
            assert (received is not None) == (role == "worker")
    assert seen == ["a part of 500 bytes came; at most 100 are allowed"]
    hub.close()


def test_a_link_says_why_it_is_refused_and_tries_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    over_tcp_alone(monkeypatch)
    client = Client(server.address, b"stranger")
    give_up_s = time.monotonic() + PATIENCE_S
    while not client.link.refusal and time.monotonic() < give_up_s:
        server.poll(1)
        client.poll(1)
    assert "it is not a process of this user on this host" in client.link.refusal
    assert not client.link.connected
    monkeypatch.undo()
    while not client.link.connected and time.monotonic() < give_up_s:
        server.poll(1)
        client.poll(1)
    assert client.link.connected
    client.close()
