"""`mainspring top` itself: keys in, pictures out, from a controller as things happen or from a log."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Protocol

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mainspring.console.live import Following, LiveStream
from mainspring.console.payloads import Head, ModelLine
from mainspring.console.queries.asking import head
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import LIMIT, models
from mainspring.console.queries.schedule import schedule
from mainspring.console.queries.worker import memory
from mainspring.console.recorded import Recording
from mainspring.console.terminal.screen import VIEWS, Screen, ViewName
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
        """Begin to connect; raise ValueError on an invalid address."""
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


_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[7~": "home",
    "[8~": "end",
    "[5~": "page up",
    "[6~": "page down",
    "[Z": "back tab",
}
"""Names of keys by the sequence that terminals send after an escape."""
_LONGEST = 8
"""Characters of an escape sequence at most; a longer one is none."""
_CONTROL = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", " ": "space"}


def keys(text: str) -> Iterator[str]:
    """Yield the names of keys in what a terminal sent; unknown sequences are passed over."""
    while text:
        first, text = text[0], text[1:]
        if first != "\x1b":
            name = _CONTROL.get(first, first)
            if name.isprintable():
                yield name
        elif not text or text[0] not in "[O":
            yield "escape"
        else:
            length = next((at for at in range(1, min(len(text), _LONGEST)) if "@" <= text[at] <= "~"), None)
            if length is None:
                return
            sequence, text = text[: length + 1], text[length + 1 :]
            if sequence in _SEQUENCES:
                yield _SEQUENCES[sequence]


class Keyboard:
    """The terminal of a process, so that keys come as they are pressed and are not shown."""

    def __init__(self, descriptor: int) -> None:
        """Take a descriptor that is a terminal's."""
        self._descriptor = descriptor

    def __enter__(self) -> Keyboard:
        """Change how the terminal sends keys."""
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def pressed(self) -> list[str]:
        """Return the keys that were pressed since the last call; ``["hung up"]`` if the terminal is gone."""
        if not select.select([self._descriptor], [], [], 0)[0]:
            return []
        try:
            data = os.read(self._descriptor, 1024)
        except OSError:
            data = b""
        return [*keys(data.decode(errors="ignore"))] if data else ["hung up"]


REFRESH_S = 0.5
"""Time between two pictures, unless a key asks for one."""
KEYS_S = 0.05
"""Time between two reads of the keyboard."""
SCHEDULE_NS = 1_000_000_000
"""Span of the schedule of a picture for scripts, back from the present and ahead of it."""


class NotShown(RuntimeError):
    """There is nothing to show; the text says why."""


def run_top(source: Source, screen: Screen, console: Console, descriptor: int, stop: Event) -> None:
    """Show pictures until a key or ``stop`` ends it; ``descriptor`` is a terminal's, for the keys."""
    drawn_s = 0.0
    screen.known = source.ready()
    with Keyboard(descriptor) as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while not (screen.quit or stop.is_set()):
            pressed = keyboard.pressed()
            for name in pressed:
                screen.key(name)
            _apply(source, screen)
            now_s = time.monotonic()
            if pressed or now_s - drawn_s >= REFRESH_S:
                drawn_s = now_s
                live.update(_picture(source, screen, console), refresh=True)
            source.work(KEYS_S)


def wait_for_picture(source: Source, watch_s: float, patience_s: float, stop: Event) -> None:
    """Take in until a picture is whole, and for ``watch_s`` more.

    Raises `NotShown` if none is whole within ``patience_s``.
    """
    give_up_s = time.monotonic() + patience_s
    while not source.ready():
        if stop.is_set() or time.monotonic() > give_up_s:
            raise NotShown(
                f"there is nothing to show after {patience_s:g} s: {source.detail()}. Is `mainspring up` "
                "running? --address or --controller names another cluster"
            )
        source.work(KEYS_S)
    until_s = time.monotonic() + watch_s
    while time.monotonic() < until_s and not stop.is_set():
        source.work(min(KEYS_S, max(0.0, until_s - time.monotonic())))


def print_once(source: Source, screen: Screen, console: Console) -> None:
    """Print the screen's view whole, without a frame."""
    head = source.head()
    console.print(Text(f"{head.state}  {head.policy}  {_clock(head)}"), soft_wrap=True)
    for line in screen.lines(source.view, console.width, None):
        console.print(line, no_wrap=True, overflow="crop", crop=True)


def as_json(source: Source, shown: ViewName | None) -> bytes:
    """Return the payloads of one view, or of all, with what they are of, as JSON."""
    found: dict[str, Any] = {"head": source.head()}
    for name in VIEWS if shown is None else (shown,):
        found[name] = _payload(source, name)
    return msgspec.json.encode(found)


def _payload(source: Source, name: ViewName) -> Any:
    view = source.view
    match name:
        case "cluster":
            return cluster(view)
        case "memory":
            return {each.name: memory(view, each.name) for each in cluster(view, recent=0).workers}
        case "schedule":
            return schedule(view, view.now_ns - SCHEDULE_NS, view.now_ns + SCHEDULE_NS)
        case "models":
            rows: list[ModelLine] = []
            while True:
                part = models(view, offset=len(rows), limit=LIMIT)
                rows += part.rows
                if not part.rows or len(rows) >= part.total:
                    return msgspec.structs.replace(part, offset=0, rows=rows)


def _apply(source: Source, screen: Screen) -> None:
    """Do what keys asked of a log."""
    if screen.seek_ns:
        source.seek(screen.seek_ns)
        screen.seek_ns = 0
    if screen.play:
        source.play()
        screen.play = False


def _picture(source: Source, screen: Screen, console: Console) -> Text:
    head = source.head()
    screen.known = screen.known or source.ready()
    lines = screen.frame(source.view, head, source.detail(), _clock(head), console.width, console.height)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def _clock(head: Head) -> str:
    """Return the time of day of a picture, in local time."""
    return datetime.fromtimestamp(head.unix_ns / 1e9).strftime("%H:%M:%S") if head.unix_ns else ""
