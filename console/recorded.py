"""A recorded run, played to a consumer of records: play, pause, and show any instant of it.

Nothing here has a thread: `Recording.work` reads on for a few milliseconds whenever it is called. Memory is
bounded, whatever the run's length: a piece of the log, and the state at a bounded number of places
(`console.checkpoints`), from which an instant is reached by reading on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Literal

from mainspring.console.checkpoints import BEGINNING, Checkpoints, LogReader, Place
from mainspring.console.live import Observed, Taker
from mainspring.console.payloads import Overview
from mainspring.messages.events import Wakeup
from mainspring.telemetry.runs import choose_run

LOOKED_AFTER = 32
"""Records between two readings of the clock."""
PLAYING_S = 0.02
IDLE_S = 1.0
"""Time until there is something to do again, unless somebody seeks."""
MAX_SPEED = 1_000.0
_WAKEUP = Wakeup()

State = Literal["catching_up", "recorded"]


class Recording:
    """One run of a log."""

    def __init__(
        self,
        directory: Path | str,
        taker: Taker,
        run: int | None = None,
        clock: Callable[[], int] = monotonic_ns,
        *,
        lead_ns: int = 0,
    ) -> None:
        """Open a run by its number, the last without one, at its beginning, and play it.

        ``lead_ns``: how much of what led up to an instant is read for it, within `checkpoints.LEAD_BYTES`.
        Raises OSError if the folder or a segment can't be read, and `LogProblem` if it holds no such run.
        """
        self.run = choose_run(directory, run)
        self.at_ns = self.run.first_ns
        """The instant that is to be shown, on the run's clock."""
        self.speed = 1.0
        """Seconds of the run in a second."""
        self.playing = True
        self.jumps = 0
        """Number of times that what is shown did not follow from what was shown before."""
        self._taker = taker
        self._lead_ns = lead_ns
        self._clock = clock
        self._checkpoints = Checkpoints(self.run)
        self._worked_ns = clock()
        self._reader: LogReader | None = None
        self._next: Iterator[tuple[int, Observed]] = iter(())
        self._held: tuple[int, Observed] | None = None
        """The first record behind ``at_ns``."""
        self._shown_ns: int | None = None
        """The instant up to which everything was handed on; None if what is shown has to begin again."""
        self._ended = False

    @property
    def state(self) -> State:
        """``recorded`` once what is shown is how things stood at ``at_ns``."""
        return "recorded" if self._shown_ns == self.at_ns else "catching_up"

    @property
    def reached_ns(self) -> int:
        """The instant up to which the run was gone through; what is behind it takes a while to be shown."""
        return max(self.run.first_ns, self._checkpoints.reached_ns)

    def overview(self) -> Overview:
        """Return what became of the run's requests, as far as the run has been gone through."""
        checkpoints = self._checkpoints
        return checkpoints.overview.payload(self.reached_ns, whole=checkpoints.ended)

    def seek(
        self, at_ns: int | None = None, *, speed: float | None = None, playing: bool | None = None
    ) -> None:
        """Show another instant (the nearest one of the run), or play otherwise; None changes nothing.

        Raises ValueError on an invalid speed.
        """
        if speed is not None:
            if not 0 < speed <= MAX_SPEED:
                raise ValueError(f"the speed is {speed}; it must be above 0 and at most {MAX_SPEED:g}")
            self.speed = speed
        if playing is not None:
            self.playing = playing
        self._worked_ns = self._clock()
        if at_ns is None:
            return
        self.at_ns = min(max(at_ns, self.run.first_ns), self.run.last_ns)
        if self._shown_ns is not None and not self._shown_ns <= self.at_ns < self._skipping_ns():
            self._shown_ns = None

    def work(self, budget_ns: int) -> float:
        """Read on for about ``budget_ns``; return in how many seconds there is more to do, 0 for at once."""
        until_ns = self._clock() + budget_ns
        self._play()
        while self._clock() < until_ns:
            if self._shown_ns is None and not self._begin():
                self._checkpoints.work()
            elif self._shown_ns != self.at_ns:
                self._show(until_ns)
            elif not self._checkpoints.ended:
                self._checkpoints.work()
            else:
                return PLAYING_S if self.playing else IDLE_S
        return 0.0

    def close(self) -> None:
        """Close the log."""
        for reader in (self._reader, self._checkpoints):
            if reader is not None:
                reader.close()

    def _play(self) -> None:
        """Go on with time, unless what is shown is behind it."""
        now_ns = self._clock()
        passed_ns, self._worked_ns = now_ns - self._worked_ns, now_ns
        if self.playing and self._shown_ns == self.at_ns:
            self.at_ns = min(self.at_ns + round(passed_ns * self.speed), self.run.last_ns)
            self.playing = self.at_ns < self.run.last_ns

    def _skipping_ns(self) -> int:
        """Return from where on an instant is sooner reached from a checkpoint than by reading on."""
        assert self._shown_ns is not None
        checkpoint = self._checkpoints.before(self.at_ns, self._lead_ns)
        return self.run.last_ns + 1 if checkpoint.at_ns <= self._shown_ns else checkpoint.at_ns

    def _begin(self) -> bool:
        """Begin at a checkpoint before the instant; return False if the run was not gone through so far."""
        if self._checkpoints.reached_ns < self.at_ns and not self._checkpoints.ended:
            return self._reads_from_the_beginning()
        self._read_from(self._checkpoints.before(self.at_ns, self._lead_ns).place)
        checkpoint = self._checkpoints.before(self.at_ns, self._lead_ns)
        for at_ns, entry in checkpoint.snapshot():
            self._taker.take(at_ns, entry)
        self._shown_ns = checkpoint.at_ns
        return True

    def _reads_from_the_beginning(self) -> bool:
        """Begin with the run's first record if that is all that is asked for."""
        if self.at_ns > self.run.first_ns:
            return False
        self._read_from(BEGINNING)
        self._shown_ns = self.run.first_ns - 1
        return True

    def _read_from(self, place: Place) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = LogReader(self.run.paths, place)
        self._next, self._held, self._ended = iter(()), None, False
        self.jumps += 1
        self._taker.reset(keep_history=False)

    def _show(self, until_ns: int) -> None:
        """Hand records on up to the instant that is to be shown, as far as there is time."""
        take, count = self._taker.take, 0
        while (record := self._held or self._read()) is not None:
            self._held = None
            if record[0] > self.at_ns:
                self._held = record
                break
            take(*record)
            count += 1
            if count % LOOKED_AFTER == 0 and self._clock() >= until_ns:
                self._shown_ns = min(record[0], self.at_ns - 1)
                return
        take(self.at_ns, _WAKEUP)
        self._shown_ns = self.at_ns

    def _read(self) -> tuple[int, Observed] | None:
        """Return the next record; None at the run's end."""
        record = next(self._next, None)
        if record is None and not self._ended:
            assert self._reader is not None
            piece = self._reader.piece()
            self._ended = not piece
            self._next = iter(piece)
            record = next(self._next, None)
        return record
