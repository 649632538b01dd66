"""Telling a process that waits for sockets that it is to stop, so that it need not look again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class WhenSet:
    """While it is entered, calls something once an event is set, from a thread of its own.

    What is called must not wait: whoever leaves waits for the call.
    """

    def __init__(self, event: threading.Event, call: Callable[[], object]) -> None:
        self._event = event
        self._call = call
        self._lock = threading.Lock()
        self._left = False
        self._thread = threading.Thread(target=self._wait, name="stop", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._left = True

    def _wait(self) -> None:
        self._event.wait()
        with self._lock:
            if not self._left:
                self._call()
