"""A live cluster as the web server shows it: the stream's records, taken in a few milliseconds at a time."""

from __future__ import annotations

import asyncio
import itertools
from time import monotonic_ns

import msgspec

from mainspring.console.config import ConsoleConfig
from mainspring.console.live import Batch, LiveStream
from mainspring.console.payloads import Head, Overview
from mainspring.console.queries.head import head
from mainspring.console.view.limits import Limits
from mainspring.console.view.view import View
from mainspring.console.web.source import Granted, Replay, Seek, Unanswered
from mainspring.messages.observing import Stage
from mainspring.messages.operating import Operate, Operated, OperatorCommand
from mainspring.transport.keys import read_keys

_LOOKED_AFTER = 64
"""Records between two readings of the clock."""


class LiveSource:
    """Follows a controller."""

    def __init__(self, config: ConsoleConfig, operable: bool) -> None:
        """``operable``: whether pages may ask for changes. Raises ValueError on an address that is none,
        OSError if secret or keys can't be used."""
        self.view = View(Limits(keep_ns=round(config.keep_s * 1e9)))
        self.epoch = 0
        self._stream = LiveStream(
            config.controller_address,
            keys=read_keys(config.keys),
            operates=operable,
        )
        self._slice_ns = round(config.slice_ms * 1e6)
        self._operable = operable
        self._shard, self._shards = config.shard, config.shards
        self._run: int | None = None
        self._asked: dict[int, asyncio.Future[Granted]] = {}
        """Commands that wait for the controller's answer, by their token."""
        self._tokens = itertools.count(1)
        self._patience_s = config.operate_timeout_ms / 1e3
        self._stream.on_answer = self._answered

    async def follow(self) -> None:
        """Take in what comes, for ever."""
        while True:
            await self._take(await self._stream.next())

    def close(self) -> None:
        """Take leave of the controller."""
        self._stream.close()

    def head(self) -> Head:
        """Return what a picture of this moment is of."""
        shard, shards = self._shard, self._shards
        return head(self.view, self._stream.state, self._operable, shard=shard, shards=shards)

    def replay(self) -> Replay | None:
        """Return None: this run is not recorded."""
        return None

    def overview(self) -> Overview | None:
        """Return None: this run is not recorded."""
        return None

    def seek(self, to: Seek) -> None:
        """Raise ValueError: the present can't be left."""
        del to
        raise ValueError("this console shows a live cluster; open a log with --log to look at another time")

    async def operate(self, command: OperatorCommand, who: str) -> Granted:
        """Ask the controller for a change. Raises `Unanswered`."""
        token = next(self._tokens)
        answer: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._asked[token] = answer
        try:
            if not self._stream.send(Operate(token, who, command)):
                raise Unanswered(f"the controller can't be asked: {self._stream.detail}", at_once=True)
            async with asyncio.timeout(self._patience_s):
                return await answer
        except TimeoutError:
            raise Unanswered(
                f"the controller did not answer within {self._patience_s:g} s; it may have done it, or do it "
                "yet: look before you ask again",
                at_once=False,
            ) from None
        finally:
            del self._asked[token]

    def _answered(self, message: msgspec.Struct) -> None:
        """Hand the controller's answer to the caller that waits for it; take in what it says of workers."""
        self.view.told(message)
        if isinstance(message, Operated):
            waiting = self._asked.get(message.token)
            if waiting is not None and not waiting.done():
                waiting.set_result(Granted(message.done, message.detail))

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
