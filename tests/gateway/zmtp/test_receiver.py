"""The state machine alone: a stream means the same however it is cut, and nothing is kept beyond bounds."""

from __future__ import annotations

import random

import pytest

from mainspring.gateway.bounds import Budget
from mainspring.gateway.zmtp import wire
from mainspring.gateway.zmtp.receiver import (
    COMMAND_BYTES,
    FRAMES_AT_ONCE,
    MOST_PARTS,
    STRANGER_BYTES,
    Cut,
    Event,
    Message,
    Opened,
    Ping,
    Receiver,
)
from tests.gateway.zmtp.streams import header, message, ready

MIB = 1 << 20
HANDSHAKE = wire.GREETING + ready()


def receiver(limit: int = MIB, budget: Budget | None = None, known: bool = True) -> Receiver:
    made = Receiver(limit, budget or Budget(16 * MIB))
    made.stranger = not known
    return made


def play(machine: Receiver, data: bytes, sizes: list[int] | None = None) -> list[Event]:
    """Give a stream to the machine, as its owner does, in pieces of these sizes, the last one repeated."""
    events: list[Event] = []
    at, turn = 0, 0
    sizes = sizes or [len(data)]
    while True:
        event = machine.next()
        if event is not None:
            events.append(event)
            continue
        if not machine.starved:
            continue
        if at >= len(data):
            return events
        size = sizes[min(turn, len(sizes) - 1)]
        turn += 1
        piece, at = data[at : at + size], at + size
        if (target := machine.target()) is not None:
            count = min(len(piece), len(target))
            target[:count] = piece[:count]
            machine.filled(count)
            piece = piece[count:]
        buffer = bytearray(bytes(machine.rest()) + piece)
        machine.feed(memoryview(buffer))
        if (event := machine.next()) is not None:
            events.append(event)
        machine.keep()
        buffer[:] = bytes(len(buffer))


def plain(events: list[Event]) -> list[object]:
    return [[bytes(part) for part in each.parts] if isinstance(each, Message) else each for each in events]


def test_a_stream_means_the_same_however_it_is_cut() -> None:
    generator = random.Random(5)
    sent = [
        [
            generator.randbytes(generator.choice((0, 1, 255, 256, 5_000)))
            for _ in range(generator.randint(1, 4))
        ]
        for _ in range(20)
    ]
    data = HANDSHAKE + b"".join(message(*parts) for parts in sent)
    for sizes in ([1 << 20], [1], [7, 300], [generator.randint(1, 5_000) for _ in range(9_999)]):
        budget = Budget(16 * MIB)
        events = play(receiver(budget=budget), data, sizes)
        assert plain(events) == [Opened(False), *sent]
        assert budget.held_bytes == 0


def test_a_ping_may_come_between_the_frames_of_a_message() -> None:
    ping = wire.command(b"PING", b"\0\x14context")
    data = HANDSHAKE + ping + b"\x01\x01a" + ping + b"\x00\x01b"
    events = play(receiver(), data)
    expected = Ping(b"context", 2_000_000_000)
    assert plain(events) == [Opened(False), expected, expected, [b"a", b"b"]]


def test_unknown_commands_mean_nothing() -> None:
    data = HANDSHAKE + wire.command(b"SUBSCRIBE", b"x") + wire.command(b"PONG", b"") + message(b"a")
    assert plain(play(receiver(), data)) == [Opened(False), [b"a"]]


def test_the_empty_frame_of_a_req_socket_is_taken_off() -> None:
    events = play(receiver(), wire.GREETING + ready(b"REQ") + message(b"", b"a", b"b"))
    assert plain(events) == [Opened(True), [b"a", b"b"]]
    with pytest.raises(wire.Violation, match="empty frame"):
        play(receiver(), wire.GREETING + ready(b"REQ") + message(b"a", b"b"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no ZeroMQ client"),
        (b"\x16\x03\x01\x02\x00", "no ZeroMQ client"),
        (b"\x00", "no ZeroMQ client"),
        (wire.GREETING[:9] + b"\x00", "no ZeroMQ client"),
        (wire.SIGNATURE + b"\x01", "ZMTP 1"),
        (wire.SIGNATURE + b"\x03\x00" + b"CURVE".ljust(20, b"\0"), "CURVE"),
        (wire.GREETING + message(b"hello"), "before the handshake"),
        (wire.GREETING + header(1 << 40, wire.COMMAND), "command of it has"),
        (wire.GREETING + b"\x04\x00", "no name"),
        (wire.GREETING + b"\x04\x05\x20READ", "no name"),
        (wire.GREETING + wire.command(b"HELLO", b""), "in place of READY"),
        (wire.GREETING + wire.command(b"READY", b"\x0bSocket-Type\xff\xff\xff\xffDEALER"), "damaged"),
        (wire.GREETING + wire.command(b"READY", b"\x0bSock"), "damaged"),
        (wire.GREETING + wire.command(b"READY", b""), "use a DEALER"),
        (wire.GREETING + ready(b"PUB"), "PUB socket"),
        (HANDSHAKE + b"\x08\x00", "flags"),
        (HANDSHAKE + b"\x05\x00", "flags"),
        (HANDSHAKE + header(1 << 63), "are allowed"),
        (HANDSHAKE + header(MIB + 1), "are allowed"),
        (HANDSHAKE + header(MIB - 1, wire.MORE) + bytes(MIB - 1) + header(2), "are allowed"),
        (HANDSHAKE + b"\x01\x00" * 10_000, "frames"),
        (HANDSHAKE + wire.command(b"ERROR", b"\x03bad"), "it said"),
    ],
)
def test_what_is_no_stream_of_a_client_ends_it(data: bytes, said: str) -> None:
    for sizes in ([len(data)], [-(-len(data) // 20_000)]):
        budget = Budget(16 * MIB)
        machine = receiver(budget=budget)
        with pytest.raises(wire.Violation, match=said):
            play(machine, data, sizes)
        machine.close()
        assert budget.held_bytes == 0


def test_no_memory_is_taken_before_a_size_is_checked() -> None:
    budget = Budget(1 << 62)
    with pytest.raises(wire.Violation):
        play(receiver(budget=budget), HANDSHAKE + header(1 << 50))
    assert budget.held_bytes == 0
    with pytest.raises(wire.Violation):
        play(receiver(budget=budget), HANDSHAKE + header(COMMAND_BYTES + 1, wire.COMMAND))


def test_a_stranger_may_send_little_and_the_rest_is_skipped() -> None:
    budget = Budget(16 * MIB)
    machine = receiver(budget=budget, known=False)
    large = [b"request", bytes(STRANGER_BYTES), bytes(300_000)]
    data = HANDSHAKE + message(*large)
    cut = play(machine, data[:-1], [4_096])
    assert len(cut) == 1
    assert budget.held_bytes <= STRANGER_BYTES
    assert machine.target() is None
    events = play(machine, data[-1:] + message(b"hello"))
    assert events == [Message([b"request"], Cut.STRANGER), Message([b"hello"])]
    assert budget.held_bytes == 0


def test_frames_beyond_the_bound_are_skipped_and_the_first_one_is_kept() -> None:
    events = play(receiver(), HANDSHAKE + message(b"head", *[b"x"] * MOST_PARTS) + message(b"next"))
    assert events[1:] == [Message([b"head"], Cut.PARTS), Message([b"next"])]
    events = play(receiver(), HANDSHAKE + message(*[b"x"] * MOST_PARTS))
    assert events[1:] == [Message([b"x"] * MOST_PARTS)]


def test_messages_that_have_not_wholly_come_share_a_budget() -> None:
    budget = Budget(100_000)
    first, second = receiver(budget=budget), receiver(budget=budget)
    play(first, HANDSHAKE + header(90_000))
    assert budget.held_bytes == 90_000
    events = play(second, HANDSHAKE + message(b"head", bytes(20_000)))
    assert events[1:] == [Message([b"head"], Cut.NO_ROOM)]
    assert budget.held_bytes == 90_000
    first.close()
    assert budget.held_bytes == 0
    assert plain(play(second, message(b"head", bytes(20_000)))) == [[b"head", bytes(20_000)]]


def test_frames_without_end_are_looked_at_a_few_at_a_time() -> None:
    machine = receiver()
    machine.feed(memoryview(HANDSHAKE + b"\x01\x00" * 5_000))
    assert machine.next() == Opened(False)
    left = len(machine.rest())
    assert machine.next() is None
    assert not machine.starved
    assert left - len(machine.rest()) == 2 * FRAMES_AT_ONCE
