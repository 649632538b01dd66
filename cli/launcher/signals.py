"""SIGTERM and Ctrl-C as a `threading.Event`."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mainspring.__main__ import end_at_once

ONE_SIGNAL_S = 0.3
"""Time within which signals are one: `timeout` and some shells send theirs to a process and to its group."""
_IMPORT_FILE = "<frozen importlib._bootstrap>"


def stop_on_signals(stop: threading.Event, *numbers: signal.Signals, second_exit_code: int) -> list[int]:
    """Have the first of these signals set ``stop``, and a second one end the process at once; return a list
    that has the first once it has come.

    A signal handler must not set an event itself: it runs between any two steps of the main thread, which
    may hold the event's lock just then. The interpreter writes the signal to a socket instead, and a thread
    reads it. To be called from the main thread.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    heard: list[int] = []
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)

    def wait() -> None:
        wanted = bytes(numbers)
        first_s = 0.0
        while data := reader.recv(16):
            for number in (number for number in data if number in wanted):
                if not stop.is_set():
                    heard.append(number)
                    first_s = time.monotonic()
                    stop.set()
                elif time.monotonic() - first_s > ONE_SIGNAL_S:
                    os._exit(second_exit_code)

    for number in numbers:
        signal.signal(number, _ignore)
    threading.Thread(target=wait, name="signals", daemon=True).start()
    return heard


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the thread of `stop_on_signals` does it."""


ENDED_BY: list[int] = []
"""Signals that `stopping` received. The command line's exit code tells of the first, whatever the result."""


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Have the first SIGINT or SIGTERM set the event, which ends work with its result; a second raises."""
    stop, first_s = threading.Event(), [0.0]

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            if time.monotonic() - first_s[0] > ONE_SIGNAL_S:
                raise KeyboardInterrupt
            return
        ENDED_BY.append(number)
        first_s[0] = time.monotonic()
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupts_raise() -> None:
    """Have Ctrl-C raise KeyboardInterrupt once, so that a verb leaves things in order; a second one ends it.

    While modules are imported it ends the process at once, as nothing has begun: what an interrupted import
    leaves can't be used, and some packages take KeyboardInterrupt for something else.
    """

    def on_interrupt(_number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, end_at_once)
        if threading.active_count() == 1 and _importing(frame):
            end_at_once()
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, on_interrupt)


def _importing(frame: FrameType | None) -> bool:
    """Say whether a frame, or one that called it, imports a module."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_FILE:
            return True
        frame = frame.f_back
    return False
