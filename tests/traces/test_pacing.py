"""Waiting for a message or an instant, whichever is first."""

from __future__ import annotations

import threading
from time import monotonic_ns
from typing import Any

import zmq

from mainspring.traces.replayer import Waiter, sharp_timers

MS = 1_000_000


class Sockets:
    """Some sockets of ZeroMQ, whose descriptors show only that something has happened."""

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._sockets = sockets

    @property
    def descriptors(self) -> list[int]:
        return [each.fileno() for each in self._sockets]

    def ready(self) -> bool:
        return any(int(each.get(zmq.EVENTS)) & zmq.POLLIN for each in self._sockets)


def test_it_wakes_for_a_message_and_at_its_instant_and_never_before_either() -> None:
    context: zmq.Context[Any] = zmq.Context()
    left, right, silent = context.socket(zmq.PAIR), context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    silent.bind("inproc://silent")
    left.bind("inproc://pair")
    right.connect("inproc://pair")
    waiter = Waiter(Sockets(silent, left))
    sharp_timers(True)
    try:
        until_ns = monotonic_ns() + 20 * MS
        assert not waiter.wait(until_ns)
        assert monotonic_ns() >= until_ns
        assert not waiter.wait(until_ns), "an instant that is past is not waited for"
        timer = threading.Timer(0.03, lambda: right.send(b"x"))
        timer.start()
        assert waiter.wait(monotonic_ns() + 60_000 * MS)
        timer.join()
        assert waiter.ready()
        assert waiter.wait(monotonic_ns() + 60_000 * MS), "a message that is there is not waited for"
        left.recv()
        assert not waiter.ready()
    finally:
        sharp_timers(False)
        for socket in (left, right, silent):
            socket.close(0)
        context.term()
