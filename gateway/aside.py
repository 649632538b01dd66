"""Long work of an application, in a thread beside the gateway's loop, in the order in which it came."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from mainspring.selection.linear.application import Place

LONG_NS = 200_000
"""What takes longer leaves the loop."""


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "mainspring-linear")


class Aside:
    """The work of one application. What is short waits only while something long is before it."""

    def __init__(self) -> None:
        self._waiting = 0

    def run(self, cost_ns: float, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Do work of about so many nanoseconds, and hand what it returns on, in the loop."""
        if cost_ns <= LONG_NS and not self._waiting:
            then(work())
            return
        self._waiting += 1

        def done(future: asyncio.Future[Any]) -> None:
            self._waiting -= 1
            if not future.cancelled():
                then(future.result())

        asyncio.get_running_loop().run_in_executor(_thread(), work).add_done_callback(done)


def place() -> Place:
    """Return where the model of a new application is worked at."""
    return Place(Aside().run, threading.Lock())
