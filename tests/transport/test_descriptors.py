"""Descriptors that come along with messages: to whom, how many, in which order, and none is left open."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.keys import Keys
from tests.blocking import LIMITS, Client, Server
from tests.transport.issuing import Issue
from tests.transport.raw import over_tcp_alone
from tests.transport.test_conversations import connect

TWO = Limits(part_bytes=1 << 30, backlog_bytes=1 << 30, backlog_messages=1 << 20, descriptors=2)
PEER = b"tool/somebody"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(limits=TWO)
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = connect(server, b"somebody", limits=TWO)
    yield made
    made.close()


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def pipe_with(text: bytes) -> int:
    """Return the end of a pipe where this is to be read."""
    ours, theirs = os.pipe()
    os.write(theirs, text)
    os.close(theirs)
    return ours


def give(client: Client, text: bytes) -> Delivery:
    """Send a message with the end of a pipe."""
    end = pipe_with(text)
    delivery = client.link.send_descriptor([b"with " + text], end)
    os.close(end)
    return delivery


def taken(server: Server) -> bytes | None:
    """Return what is to be read of the next descriptor, which is closed."""
    end = server.listener.descriptor(PEER)
    if end is None:
        return None
    found = os.read(end, 99)
    os.close(end)
    return found


def test_descriptors_come_with_their_messages_in_order(server: Server, client: Client) -> None:
    before = opened()
    client.send([b"first", bytes(30_000)])
    assert give(client, b"a") is Delivery.SENT
    client.send([b"second"])
    assert give(client, b"b") is Delivery.SENT
    client.send([b"third", bytes(30_000)])
    found = [bytes(server.receive()[1]) for _ in range(5)]
    assert found == [b"first", b"with a", b"second", b"with b", b"third"]
    assert [taken(server), taken(server), taken(server)] == [b"a", b"b", None]
    assert opened() == before


def test_it_goes_both_ways(server: Server, client: Client) -> None:
    client.send([b"hello"])
    peer = server.receive()[0]
    end = pipe_with(b"back")
    assert server.listener.send_descriptor(peer, [b"here"], end) is Delivery.SENT
    os.close(end)
    assert client.receive() == [b"here"]
    found = client.link.descriptor()
    assert found is not None
    assert os.read(found, 9) == b"back"
    os.close(found)
    assert client.link.descriptor() is None


def test_more_than_are_taken_are_closed_and_the_messages_come(server: Server, client: Client) -> None:
    before = opened()
    for text in (b"a", b"b", b"c", b"d"):
        assert give(client, text) is Delivery.SENT
    assert [server.receive()[1] for _ in range(4)] == [b"with a", b"with b", b"with c", b"with d"]
    assert [taken(server), taken(server), taken(server)] == [b"a", b"b", None]
    assert opened() == before


def test_several_with_one_message_are_taken_as_far_as_they_may(server: Server, client: Client) -> None:
    before = opened()
    ends = [pipe_with(text) for text in (b"a", b"b", b"c")]
    channel = client.link._channel
    assert channel is not None
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", *ends))
    channel._socket.sendmsg([struct.pack("<II", 4, 0), b"many"], [rights])
    for end in ends:
        os.close(end)
    assert server.receive()[1] == b"many"
    assert taken(server) == b"a"
    while taken(server) is not None:
        pass
    assert opened() == before


def test_who_expects_none_gets_none(client: Client) -> None:
    plain = Server()
    other = connect(plain, b"somebody")
    before = opened()
    assert give(other, b"a") is Delivery.SENT
    assert plain.receive()[1] == b"with a"
    assert plain.listener.descriptor(PEER) is None
    assert opened() == before
    other.close()
    plain.close()


def test_those_that_nobody_asked_for_are_closed_with_the_connection(server: Server, client: Client) -> None:
    client.send([b"hello"])
    server.receive()
    before = opened()
    assert give(client, b"a") is Delivery.SENT
    server.receive()
    assert opened() == before + 1
    server.listener.disconnect(PEER, "the test ends it")
    assert opened() < before + 1


def test_none_is_sent_while_something_waits(server: Server, client: Client) -> None:
    while not client.link.waits:
        client.link.send([b"much", bytes(1 << 20)])
    assert give(client, b"a") is Delivery.FULL
    while client.link.waits:
        server.poll(1)
        if server.poll(0):
            server.receive()
        client.poll(0)
    assert give(client, b"a") is Delivery.SENT


def test_none_goes_to_another_host(issued: Issue, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(str(issued("tool", "*")))
    server = Server(limits=TWO, keys=keys)
    over_tcp_alone(monkeypatch)
    client = connect(server, b"somebody", keys=keys)
    assert not client.link.local
    assert give(client, b"a") is Delivery.GONE
    client.send([b"after"])
    assert server.receive()[1] == b"after"
    client.close()
    server.close()


def test_the_owner_hears_which_connection_has_ended(server: Server, client: Client) -> None:
    ended: list[bytes] = []
    server.listener.on_end = ended.append
    assert client.link.local
    client.close()
    while not ended:
        server.poll(1)
    assert ended == [PEER]


def test_limits_take_no_descriptors_unless_they_say_so() -> None:
    assert LIMITS.descriptors == 0
