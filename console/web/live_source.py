"""A live cluster as the web server shows it: the stream's records, taken in a few milliseconds at a time."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any

from mainspring.console.config import ConsoleConfig
from mainspring.console.live import Batch, LiveStream
from mainspring.console.payloads import Head
from mainspring.console.queries.head import head
from mainspring.console.view.limits import Limits
from mainspring.console.view.view import View
from mainspring.console.web.source import Answered, Replay, Seek, Unanswered
from mainspring.messages.observing import Stage

_LOOKED_AFTER = 64
"""Records between two looks at the clock."""


class LiveSource:
    """Follows a controller."""

    def __init__(self, config: ConsoleConfig, operable: bool) -> None:
        """``operable``: whether pages may ask for changes. Raises ValueError on an address that is none."""
        self.view = View(Limits(keep_ns=round(config.keep_s * 1e9)))
        self.epoch = 0
        self._stream = LiveStream(config.controller_address)
        self._slice_ns = round(config.slice_ms * 1e6)
        self._operable = operable
        self._run: int | None = None

    async def follow(self) -> None:
        """Take in what comes, for ever."""
        while True:
            await self._take(await self._stream.next())

    def close(self) -> None:
        """Take leave of the controller."""
        self._stream.close()

    def head(self) -> Head:
        """Return what a picture of this moment is of."""
        return head(self.view, self._stream.state, self._operable)

    def replay(self) -> Replay | None:
        """Return None: this is no recorded run."""
        return None

    def seek(self, to: Seek) -> None:
        """Raise ValueError: the present can't be left."""
        del to
        raise ValueError("this console shows a live cluster; open a log with --log to look at another time")

    async def operate(self, wish: Any, who: str) -> Answered:
        """Ask the controller for a change. Raises `Unanswered`."""
        raise Unanswered(f"nothing takes {wish} of {who}", in_time=True)

    async def _take(self, batch: Batch) -> None:
        """Take a batch in, letting the pages have their turn in between."""
        if batch.stage is Stage.BEGIN:
            self.view.reset(keep_history=batch.run == self._run)
            self._run = batch.run
            self.epoch += 1
        take = self.view.take
        until_ns = monotonic_ns() + self._slice_ns
        for index, (now_ns, entry) in enumerate(batch.records):
            take(now_ns, entry)
            if index % _LOOKED_AFTER == 0 and monotonic_ns() > until_ns:
                await asyncio.sleep(0)
                until_ns = monotonic_ns() + self._slice_ns
