"""A recorded run as the web server shows it: one instant of it, for all pages of this console."""

from __future__ import annotations

import asyncio

from mainspring.console.config import ConsoleConfig
from mainspring.console.payloads import Head, Overview
from mainspring.console.queries.head import head
from mainspring.console.recorded import Recording
from mainspring.console.view.limits import Limits
from mainspring.console.view.view import View
from mainspring.console.web.source import Granted, Replay, Seek, Unanswered
from mainspring.messages.operating import OperatorCommand


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
