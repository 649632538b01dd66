"""What one peer that sends without a pause costs the others of its thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.channel import READS, Channel

SIZE = 64 << 20
LIMITS = Limits(SIZE, SIZE, 100)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the bare socket at its other end."""
    with select.epoll() as epoll:
        one, other = socket.socketpair()
        one.setblocking(False)
        channel = Channel(one, epoll, LIMITS, b"peer")
        epoll.register(one.fileno(), select.EPOLLIN)
        yield channel, other
        channel.close()
        other.close()


def test_a_large_message_is_read_by_turns(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, other = ends
    content = bytes(range(256)) * (SIZE // 256)
    head = (1).to_bytes(4, "little") + (1).to_bytes(4, "little") + SIZE.to_bytes(8, "little")
    sender = threading.Thread(target=other.sendall, args=(head + b"m" + content,))
    sender.start()
    reads = 0
    read = Channel._read

    def counted(self: Channel) -> None:
        nonlocal reads
        reads += 1
        read(self)

    monkeypatch.setattr(Channel, "_read", counted)
    turns, message = 0, None
    while message is None:
        before = reads
        channel.readable()
        message = channel.next()
        assert reads - before <= READS
        turns += 1
    sender.join()
    assert turns > 1
    assert message[0] == b"m"
    assert message[1] == content


def test_large_parts_are_received_where_they_are_wanted() -> None:
    taken: list[memoryview] = []

    class Somewhere:
        def take(self, size: int) -> memoryview:
            taken.append(memoryview(bytearray(size)))
            return taken[-1]

    one, other = socket.socketpair()
    with select.epoll() as epoll, other:
        one.setblocking(False)
        epoll.register(one.fileno(), select.EPOLLIN)
        channel = Channel(one, epoll, Limits(SIZE, SIZE, 100, memory=Somewhere()), b"peer")
        content = bytes(range(250)) * 400
        head = (1).to_bytes(4, "little") + (1).to_bytes(4, "little") + len(content).to_bytes(8, "little")
        other.sendall(head + b"m" + content)
        channel.readable()
        message = channel.next()
        channel.close()
    assert message == [b"m", content]
    assert [each.nbytes for each in taken] == [len(content)]
    assert message[1] is taken[0]


def test_a_last_word_goes_beyond_what_may_wait(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    assert channel.send((bytes(SIZE), bytes(SIZE))) is Delivery.SENT
    assert channel.send((b"x",)) is Delivery.FULL
    assert channel.send((b"last",), beyond=True) is Delivery.SENT
    assert channel.backlog_bytes > SIZE
    other.close()
