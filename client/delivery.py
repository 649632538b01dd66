"""Outcomes from the client's thread to event loops: all that there are in one step of a loop.

`asyncio.wrap_future` wakes the loop once for each future; a thousand outcomes at one time would each cost a
system call and a callback, while all of them grow late.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from mainspring.client.call import Call


class Delivery:
    """See the module's docstring; for any number of loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    async def outcome(self, call: Call) -> Any:
        """Wait for a call's outcome: return it, or raise its error. Cancelling the wait cancels the call."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        call.add_done_callback(lambda _: self._tell(loop, ended))
        try:
            await ended
        except asyncio.CancelledError:
            call.cancel()
            raise
        return call.result()

    def _tell(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        with self._lock:
            waiting = self._ended.setdefault(loop, [])
            waiting.append(ended)
            if len(waiting) > 1:
                return
        # The loop may be closed, with nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._deliver, loop)
            return
        with self._lock:
            self._ended.pop(loop, None)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiting = self._ended.pop(loop, [])
        for ended in waiting:
            if not ended.done():
                ended.set_result(None)
