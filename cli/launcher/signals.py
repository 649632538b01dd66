"""SIGTERM and Ctrl-C as a `threading.Event`."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def stop_on_signals(stop: threading.Event, *numbers: signal.Signals, second_exit_code: int) -> None:
    """Have the first of these signals set ``stop``, and a second one end the process at once.

    A signal handler must not set an event itself: it runs between any two steps of the main thread, which
    may hold the event's lock just then. The interpreter writes the signal to a socket instead, and a thread
    reads it. To be called from the main thread.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)

    def wait() -> None:
        wanted = bytes(numbers)
        while data := reader.recv(16):
            for _ in (number for number in data if number in wanted):
                if stop.is_set():
                    os._exit(second_exit_code)
                stop.set()

    for number in numbers:
        signal.signal(number, _ignore)
    threading.Thread(target=wait, name="signals", daemon=True).start()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the thread of `stop_on_signals` does it."""


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Have the first SIGINT or SIGTERM set the event, which ends work with its result; a second raises."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
