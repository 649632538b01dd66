"""Sources of what the web server shows: a view kept up to date by a controller's stream or a recorded log."""

from __future__ import annotations

import asyncio
import itertools
from time import monotonic_ns
from typing import Protocol

import msgspec

from mainspring.console.config import ConsoleConfig
from mainspring.console.live import Batch, LiveStream
from mainspring.console.payloads import Head, Overview
from mainspring.console.queries.asking import head
from mainspring.console.recorded import Recording
from mainspring.console.view.series import Limits
from mainspring.console.view.view import View
from mainspring.messages.observing import Stage
from mainspring.messages.operating import Operate, Operated, OperatorCommand
from mainspring.transport.keys import read_keys


class Replay(msgspec.Struct, frozen=True):
    """The position in a recorded run, and its speed."""

    first_ns: int
    last_ns: int
    at_ns: int
    speed: float
    """Seconds of the run in a second."""
    playing: bool
    reached_ns: int
    """Instant up to which the run was read since it was opened; what is behind that takes a while to be
    shown."""


class Seek(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the position or speed in a recorded run; what is None stays as it is."""

    at_ns: int | None = None
    """Instant on the run's clock; one outside the run means its nearest end."""
    speed: float | None = None
    playing: bool | None = None


class Granted(msgspec.Struct, frozen=True):
    """The outcome of an operator's command."""

    done: bool
    detail: str
    """Description of what was begun, or why it was not and what would be right."""


class Unanswered(Exception):
    """The controller can't be asked, or does not answer; the text says why."""

    def __init__(self, text: str, *, at_once: bool) -> None:
        super().__init__(text)
        self.at_once = at_once
        """True if nothing was asked; else the command may have been granted, or may be yet."""


class Source(Protocol):
    """A `View` that something keeps up to date."""

    @property
    def view(self) -> View:
        """Return the view at the present moment."""

    @property
    def epoch(self) -> int:
        """Rises whenever what is shown does not follow from what was shown before."""

    async def follow(self) -> None:
        """Keep it up to date, for ever."""

    def close(self) -> None:
        """Leave whatever it follows."""

    def head(self) -> Head:
        """Return what a picture of this moment is of."""

    def replay(self) -> Replay | None:
        """Return the position in a recorded run; None for a live one."""

    def overview(self) -> Overview | None:
        """Return what became of a recorded run's requests; None for a live one."""

    def seek(self, to: Seek) -> None:
        """Move to another position in a recorded run. Raises ValueError if that is impossible."""

    async def operate(self, command: OperatorCommand, who: str) -> Granted:
        """Ask the controller for a change. Raises `Unanswered`."""


_LOOKED_AFTER = 64
"""Records between two readings of the clock."""


class LiveSource:
    """Follows a controller."""

    def __init__(self, config: ConsoleConfig, operable: bool) -> None:
        """``operable``: whether pages may ask for changes. Raises ValueError on an invalid address,
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


class RecordedSource:
    """Plays the last run of a log."""

    def __init__(self, config: ConsoleConfig) -> None:
        """Open the log; raise OSError if it can't be read, ValueError if it holds no run."""
        self.view = View(Limits(keep_ns=round(config.keep_s * 1e9)))
        self._recording = Recording(config.log_dir, self.view, lead_ns=self.view.limits.keep_ns)
        self._slice_ns = round(config.slice_ms * 1e6)
        self._sought = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Rises whenever what is shown does not follow from what was shown before."""
        return self._recording.jumps

    async def follow(self) -> None:
        """Read on and play, for ever."""
        while True:
            self._sought.clear()
            idle_s = self._recording.work(self._slice_ns)
            if not idle_s:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(idle_s):
                    await self._sought.wait()
            except TimeoutError:
                pass

    def close(self) -> None:
        """Close the log."""
        self._recording.close()

    def head(self) -> Head:
        """Return what a picture of this moment is of."""
        return head(self.view, self._recording.state)

    def replay(self) -> Replay:
        """Return the position in the run."""
        recording = self._recording
        return Replay(
            first_ns=recording.run.first_ns,
            last_ns=recording.run.last_ns,
            at_ns=recording.at_ns,
            speed=recording.speed,
            playing=recording.playing,
            reached_ns=recording.reached_ns,
        )

    def overview(self) -> Overview:
        """Return what became of the run's requests, as far as it has been gone through."""
        return self._recording.overview()

    def seek(self, to: Seek) -> None:
        """Move to another position in the run; raise ValueError for an impossible speed."""
        self._recording.seek(to.at_ns, speed=to.speed, playing=to.playing)
        self._sought.set()

    async def operate(self, command: OperatorCommand, who: str) -> Granted:
        """Raise `Unanswered`: what is over can't be changed."""
        del command, who
        raise Unanswered("this console shows a recorded run; what is over can't be changed", at_once=True)
