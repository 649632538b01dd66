"""Waiting for whichever comes first, an instant or a message, to within some tens of microseconds.

ZeroMQ's own poll counts in milliseconds. Here ``select`` sleeps on the sockets' file descriptors until
shortly before the instant, and the rest is spun. A ZeroMQ descriptor only tells that *something* happened:
what did is asked of ``ZMQ_EVENTS``, before each sleep (zmq_getsockopt(3), ZMQ_FD).
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Sequence
from time import monotonic_ns

import zmq

SPIN_NS = 20_000
"""Time that is spun rather than slept: less than a wake-up takes, so that a run at low rates stays cheap."""
_POLLIN = int(zmq.POLLIN)
_PR_SET_TIMERSLACK = 29
_DEFAULT_SLACK = 0


class Waiter:
    """Waits for sockets of one thread."""

    def __init__(self, sockets: Sequence[zmq.Socket[bytes]]) -> None:
        self._sockets = sockets
        self._descriptors = [socket.fileno() for socket in sockets]

    def ready(self) -> bool:
        """Return whether a socket can be received from now."""
        return any(int(socket.get(zmq.EVENTS)) & _POLLIN for socket in self._sockets)

    def wait(self, until_ns: int) -> bool:
        """Return True as soon as a socket can be received from, False at ``until_ns`` (monotonic)."""
        while not self.ready():
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0:
                return False
            if left_ns > SPIN_NS:
                select.select(self._descriptors, [], [], (left_ns - SPIN_NS) / 1e9)
        return True


def sharp_timers(sharp: bool) -> None:
    """Let this thread's sleeps end to the nanosecond, or as by default; not on Linux, do nothing.

    Without it the kernel may end any sleep 50 us late (prctl(2), PR_SET_TIMERSLACK).
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return
    prctl(_PR_SET_TIMERSLACK, 1 if sharp else _DEFAULT_SLACK, 0, 0, 0)
