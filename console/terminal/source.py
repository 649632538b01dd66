"""Sources of the terminal's records: a controller as they happen, or a log that is played."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from mainspring.console.live import Following, LiveStream
from mainspring.console.payloads import Head
from mainspring.console.queries.head import head
from mainspring.console.recorded import Recording
from mainspring.console.view.view import View
from mainspring.transport.keys import Keys

_SLICE_NS = 20_000_000
"""Longest time for which a log is read before the keyboard is read again."""


class Source(Protocol):
    """A source of what the terminal shows."""

    view: View

    def work(self, at_most_s: float) -> None:
        """Take in what has come, waiting for it for ``at_most_s`` at most."""

    def head(self) -> Head:
        """Return what a picture of this moment is of."""

    def detail(self) -> str:
        """Return what is in the way of a true picture, for a person; empty if nothing is."""

    def ready(self) -> bool:
        """Say whether a picture would be whole."""

    def seek(self, by_ns: int) -> None:
        """Show another moment of a recorded run."""

    def play(self) -> None:
        """Let a recorded run go on, or stand still."""

    def close(self) -> None:
        """Take leave."""


class LiveSource:
    """Follows a controller."""

    def __init__(
        self,
        controller: str,
        observer: str = "top",
        keys: Keys | None = None,
    ) -> None:
        """Begin to connect; raise ValueError on an address that is none."""
        self.view = View()
        self._stream = LiveStream(controller, observer, keys=keys)
        self._stream.on_answer = self.view.told
        self._following = Following(self.view)

    def work(self, at_most_s: float) -> None:
        """Take in what comes within ``at_most_s``."""
        until_s = time.monotonic() + at_most_s
        while (left_s := until_s - time.monotonic()) > 0:
            batch = self._stream.poll(round(left_s * 1e9))
            if batch is not None:
                self._following.take(batch)

    def head(self) -> Head:
        """Return what a picture of this moment is of."""
        return head(self.view, self._stream.state)

    def detail(self) -> str:
        """Return why this is not live."""
        return self._stream.detail

    def ready(self) -> bool:
        """Say whether everything is known."""
        return self._stream.state == "live"

    def seek(self, by_ns: int) -> None:
        """Do nothing: the present can't be left."""

    def play(self) -> None:
        """Do nothing: it goes on by itself."""

    def close(self) -> None:
        """Take leave of the controller."""
        self._stream.close()


class RecordedSource:
    """Plays one run of a log."""

    def __init__(self, log: Path, run: int | None = None, at_ns: int | None = None) -> None:
        """Open a run, to stand still at an instant of its clock, its end by default.

        Raises OSError if the log can't be read, and `telemetry.runs.LogProblem` if it has no such run.
        """
        self.view = View()
        self._recording = Recording(log, self.view, run)
        last_ns = self._recording.run.last_ns
        self._recording.seek(last_ns if at_ns is None else at_ns, playing=False)

    def work(self, at_most_s: float) -> None:
        """Read on for ``at_most_s`` at most."""
        until_s = time.monotonic() + at_most_s
        while (left_s := until_s - time.monotonic()) > 0:
            idle_s = self._recording.work(min(_SLICE_NS, round(left_s * 1e9)))
            time.sleep(max(0.0, min(idle_s, until_s - time.monotonic())))

    def head(self) -> Head:
        """Return what a picture of the shown moment is of."""
        return head(self.view, self._recording.state)

    def detail(self) -> str:
        """Return where in the run this is."""
        run, at_ns = self._recording.run, self._recording.at_ns
        doing = "playing" if self._recording.playing else "standing still"
        return f"{(at_ns - run.first_ns) / 1e9:.3f} of {run.seconds:.3f} s, {doing}"

    def ready(self) -> bool:
        """Say whether the moment that was asked for is shown."""
        return self._recording.state == "recorded"

    def seek(self, by_ns: int) -> None:
        """Show the moment that is ``by_ns`` later, or earlier if it is below 0."""
        self._recording.seek(self._recording.at_ns + by_ns)

    def play(self) -> None:
        """Let it go on in its own time, or stand still."""
        self._recording.seek(playing=not self._recording.playing)

    def close(self) -> None:
        """Close the log."""
        self._recording.close()
