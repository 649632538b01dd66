"""Messages between listeners and links: whole, in order, bounded, and after every kind of break."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mainspring.transport import addresses, listener
from mainspring.transport.bounds import MAX_TENSORS, Delivery, Limits
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import FIRST_RETRY_NS, LONGEST_RETRY_NS, Link
from tests.blocking import LIMITS, Client, Server, TimedOut
from tests.patience import PATIENCE_S
from tests.transport.issuing import Issue
from tests.transport.raw import over_tcp_alone

SOMEBODY = b"tool/somebody"


def connect(server: Server, name: bytes = b"", address: str = "", **given: Any) -> Client:
    """Return a client, once both ends know each other."""
    made = Client(address or server.address, name, **given)
    until_s = time.monotonic() + PATIENCE_S
    while not made.link.connected and time.monotonic() < until_s:
        server.poll(1)
        made.poll(1)
    assert made.link.connected, made.link.refusal
    return made


@pytest.fixture(params=["by name", "over TLS"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(keys: Keys | None) -> Iterator[Server]:
    made = Server(keys=keys)
    yield made
    made.close()


@pytest.fixture
def keys(way: str, issued: Issue) -> Keys | None:
    """What both ends have, where they speak TLS."""
    return Keys(str(issued("tool", "*"))) if way == "over TLS" else None


@pytest.fixture
def client(way: str, server: Server, keys: Keys | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    if way != "by name":
        over_tcp_alone(monkeypatch)
    made = connect(server, b"somebody", keys=keys)
    yield made
    made.close()


def family(client: Client) -> int:
    channel = client.link._channel
    assert channel is not None
    return int(channel._socket.family)


def pump(client: Client, message: list[Any]) -> threading.Thread:
    """Send in a thread, until the kernel has taken all."""
    client.send(message)
    thread = threading.Thread(target=client.flush)
    thread.start()
    return thread


def test_messages_that_are_sent_by_one_call_come_one_by_one_and_in_order(
    server: Server, client: Client
) -> None:
    assert server.listener.send_all(SOMEBODY, [b"first", b"", b"third" * 10_000]) is Delivery.SENT
    server.send([SOMEBODY, b"last"])
    received = [[bytes(part) for part in client.receive()] for _ in range(4)]
    assert received == [[b"first"], [b""], [b"third" * 10_000], [b"last"]]
    assert server.listener.send_all(b"tool/nobody", [b"x"]) is Delivery.GONE


@pytest.mark.parametrize("size", [0, 1, 4_000, 16_384, 100_000, 3_000_000])
def test_parts_of_any_size_come_as_they_were_sent(server: Server, client: Client, size: int) -> None:
    tensors = [np.random.default_rng(seed).bytes(size) for seed in range(3)]
    for first in (b"", b"message", bytes(20_000)):
        thread = pump(client, [first, *tensors, b""])
        received = server.receive()
        thread.join()
        assert [bytes(part) for part in received] == [SOMEBODY, first, *tensors, b""]
    server.send([SOMEBODY, b"answer", *tensors])
    answer = threading.Thread(target=lambda: [server.poll(1) for _ in range(200)])
    answer.start()
    assert [bytes(part) for part in client.receive()] == [b"answer", *tensors]
    answer.join()


def test_many_small_messages_keep_their_order(server: Server, client: Client) -> None:
    for number in range(2_000):
        client.send([b"%d" % number] * (number % 4 + 1))
    flusher = threading.Thread(target=client.flush)
    flusher.start()
    for number in range(2_000):
        assert server.receive() == [SOMEBODY, *[b"%d" % number] * (number % 4 + 1)]
    flusher.join()


def test_processes_of_one_host_meet_by_name(server: Server) -> None:
    client = connect(server)
    assert family(client) == socket.AF_UNIX
    other = Server("tcp://*:*")
    to_all = connect(other, address=other.address.replace("0.0.0.0", "127.0.0.1"))
    to_all.send([b"x"])
    assert other.receive()[1:] == [b"x"]
    assert family(to_all) == socket.AF_UNIX
    for each in (client, to_all, other):
        each.close()


def test_a_view_that_is_not_of_bytes_is_sent_whole(server: Server, client: Client) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    client.send([b"m", array.data])
    assert bytes(server.receive()[2]) == array.tobytes()


def test_a_message_has_a_bounded_number_of_tensors(server: Server, client: Client) -> None:
    client.send([b"m", *[b"t"] * MAX_TENSORS])
    assert len(server.receive()) == 2 + MAX_TENSORS
    with pytest.raises(ValueError, match="at most 1000 tensors"):
        client.send([b"m", *[b"t"] * (MAX_TENSORS + 1)])


def test_peers_without_a_name_are_told_apart_and_answered(server: Server) -> None:
    clients = [connect(server) for _ in range(3)]
    for number, each in enumerate(clients):
        each.send([b"%d" % number])
        peer, message = server.receive()
        server.send([peer, b"to " + message])
    assert [each.receive() for each in clients] == [[b"to 0"], [b"to 1"], [b"to 2"]]
    for each in clients:
        each.close()


def test_a_peer_that_connects_again_takes_its_own_place(
    server: Server, client: Client, keys: Keys | None
) -> None:
    client.send([b"first"])
    server.receive()
    again = connect(server, b"somebody", keys=keys)
    again.send([b"second"])
    assert server.receive() == [SOMEBODY, b"second"]
    server.send([SOMEBODY, b"for the newer"])
    assert again.receive() == [b"for the newer"]
    assert server.listener.ended == 1
    again.close()


def test_a_message_to_nobody_is_told(server: Server, client: Client) -> None:
    assert server.send([b"tool/nobody", b"never there"]) is Delivery.GONE
    client.send([b"here"])
    server.receive()
    client.close()
    server.poll(5)
    assert server.send([SOMEBODY, b"too late"]) is Delivery.GONE


def test_what_was_sent_before_a_close_arrives_and_the_rest_waits_for_a_linger(
    client: Client, keys: Keys | None
) -> None:
    other = Server(keys=keys)
    late = connect(other, b"late", keys=keys)
    late.send([b"hello"])
    other.receive()
    for _ in range(100):
        late.send([bytes(50_000)])
    closing = threading.Thread(target=lambda: late.close(5_000))
    closing.start()
    assert [len(other.receive()[1]) for _ in range(100)] == [50_000] * 100
    closing.join()
    other.close()


def test_a_link_connects_again_and_keeps_what_is_sent_meanwhile(
    server: Server, client: Client, keys: Keys | None
) -> None:
    client.send([b"before"])
    assert server.receive()[1] == b"before"
    server.close()
    assert client.poll(5) is False
    assert client.link.ended == 1
    assert client.send([b"meanwhile"]) is Delivery.SENT
    back = Server(server.address, keys=keys)
    waiting = threading.Thread(target=lambda: client.poll(3_000))
    waiting.start()
    assert back.receive(3_000) == [SOMEBODY, b"meanwhile"]
    back.send([SOMEBODY, b"welcome back"])
    waiting.join()
    assert client.receive() == [b"welcome back"]
    back.close()


def test_a_link_that_keeps_nothing_refuses_while_it_is_alone() -> None:
    hub = Hub()
    link = Link(hub, "tcp://127.0.0.1:9", LIMITS)
    assert link.send([b"x"]) is Delivery.GONE
    assert not link.connected
    hub.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "..", "[::1]"])
def test_a_host_that_cannot_be_found_is_tried_again_like_one_that_does_not_answer(host: str) -> None:
    hub = Hub()
    link = Link(hub, f"tcp://{host}:9", LIMITS)
    until_s = time.monotonic() + PATIENCE_S
    while link._retry_ns == 50_000_000 and time.monotonic() < until_s:
        hub.wait(10_000_000)
    assert link._retry_ns > 50_000_000
    assert not link.connected
    hub.close()


def test_a_link_waits_longer_after_each_failure() -> None:
    hub = Hub()
    link = Link(hub, "tcp://127.0.0.1:9", LIMITS)
    waits = [link._retry_ns]
    until_s = time.monotonic() + PATIENCE_S
    while waits[-1] < LONGEST_RETRY_NS and time.monotonic() < until_s:
        hub.wait(100_000_000)
        if link._retry_ns != waits[-1]:
            waits.append(link._retry_ns)
    assert waits == [min(FIRST_RETRY_NS << doubling, LONGEST_RETRY_NS) for doubling in range(len(waits))]
    assert waits[-1] == LONGEST_RETRY_NS
    hub.close()


@pytest.mark.parametrize("limits", [Limits(1 << 20, 1 << 20, 10_000), Limits(1 << 20, 1 << 30, 40)])
def test_what_waits_for_a_slow_reader_is_bounded_in_bytes_and_in_messages(limits: Limits) -> None:
    server = Server(limits=limits)
    slow = connect(server, b"slow")
    slow.send([b"hello"])
    server.receive()
    sent = 0
    while server.send([b"tool/slow", bytes(100_000)]) is Delivery.SENT:
        sent += 1
        assert sent < 1_000
    assert sent >= 10
    for number in range(sent):
        while not slow.poll(10):
            server.poll(1)
        assert len(slow.receive()[0]) == 100_000, number
    assert server.send([b"tool/slow", b"again"]) is Delivery.SENT
    assert slow.receive() == [b"again"]
    for each in (server, slow):
        each.close()


def test_memory_that_changes_after_a_send_is_copied_if_it_has_to_wait(server: Server, client: Client) -> None:
    client.send([b"hello"])
    server.receive()
    memory = bytearray(b"a" * 5_000_000)
    assert server.listener.send(SOMEBODY, [b"m", memory], volatile=True) is Delivery.SENT
    memory[:] = b"b" * len(memory)
    pumping = threading.Thread(target=lambda: [server.poll(1) for _ in range(300)])
    pumping.start()
    assert set(bytes(client.receive()[1])) == {ord("a")}
    pumping.join()


def test_one_that_says_nothing_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GREETING_NS", 300_000_000)
    raw = socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])))
    assert server.poll(20) is False
    assert len(server.listener._greeting) == 1
    raw.settimeout(PATIENCE_S)
    until_s = time.monotonic() + PATIENCE_S
    while server.listener._greeting and time.monotonic() < until_s:
        server.poll(10)
    assert raw.recv(100) == b""
    raw.close()


def test_connections_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    clients = [connect(server), connect(server), Client(server.address)]
    for _ in range(20):
        server.poll(1)
        clients[2].poll(1)
    assert [each.link.connected for each in clients] == [True, True, False]
    for each in clients:
        each.close()


def test_a_link_to_something_else_says_so() -> None:
    other = socket.create_server(("127.0.0.1", 0))
    hub = Hub()
    link = Link(hub, f"tcp://127.0.0.1:{other.getsockname()[1]}", LIMITS)
    seen: list[str] = []
    link.on_violation = seen.append
    sock, _ = other.accept()
    sock.sendall(b"220 mail.example.org ESMTP\r\n")
    until_s = time.monotonic() + PATIENCE_S
    while not seen and time.monotonic() < until_s:
        hub.wait(10_000_000)
        link.receive()
    assert "no Mainspring process" in seen[0]
    sock.close()
    other.close()
    hub.close()


def test_no_message_in_time_is_an_error(server: Server) -> None:
    with pytest.raises(TimedOut, match="within 5 ms"):
        server.receive(5)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "tcp://:1", "tcp://a b:1", "tcp://h:x", "tcp://h:65536", "ipc://x"],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="write it like tcp:"):
        addresses.parse(address)


def test_an_address_in_use_is_refused(server: Server) -> None:
    with pytest.raises(OSError, match="in use"):
        Server(server.address)
