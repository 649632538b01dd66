"""Standard output and error that no write can stop, and logging: what can't be written is dropped, counted.

A process that serves must not end, nor wait, because nobody reads what it says: its reader may be gone (``up
| head``), stand still (a terminal after Ctrl-S), or its log's disk be full. Logs go to stderr, warnings and
above unless more is asked for. Each line names its time, its process and its module, as text for a person or
as one JSON object.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import TextIO

from mainspring.messages.choices import did_you_mean

PIECE_BYTES = 4096
"""Bytes that a pipe which is ready accepts without waiting (PIPE_BUF)."""
SERVING_PATIENCE_S = 0.1
"""Time that a process which serves waits for a reader that stands still."""


def open_missing() -> None:
    """Open ``/dev/null`` for each of input, output and error that is closed.

    The next file or socket to be opened would otherwise have that number, and be written into.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def keep_saying(*, patience_s: float | None) -> None:
    """Have both standard streams drop what can't be written; see `lenient`."""
    sys.stdout = lenient(sys.stdout, 1, patience_s)
    sys.stderr = lenient(sys.stderr, 2, patience_s)


def lenient(stream: TextIO, number: int, patience_s: float | None) -> TextIO:
    """Return a stream for the same descriptor ``number`` that never fails.

    ``patience_s`` is how long it waits for a reader that stands still, None for as long as that takes. A
    stream that is not the descriptor's own, as a test's, is returned as it is.
    """
    try:
        own = stream.fileno() == number
    except (OSError, ValueError):
        own = stream in (sys.__stdout__, sys.__stderr__)
    if not own:
        return stream
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    kept = Output(number, patience_s)
    return io.TextIOWrapper(kept, stream.encoding, "backslashreplace", line_buffering=True)


def _told(lost: int) -> str:
    return f"mainspring: {lost} lines before this one could not be written here"


class Output(io.RawIOBase):
    """A descriptor to write to. A write takes all that it is given, whatever becomes of it."""

    def __init__(self, number: int, patience_s: float | None = None) -> None:
        super().__init__()
        self._number = number
        self._patience_s = patience_s
        self._stuck = False
        """True if its reader stood still at the last write: then there is no more waiting for it."""
        self._torn = False
        """True if a part of a line was written, and its rest was not."""
        self.lost = 0
        """Lines that could not be written, and that no line has told of yet."""
        self.told: Callable[[int], str] = _told
        """Function that returns the line about a number of lost lines, once something can be written
        again."""

    @property
    def name(self) -> str:
        """Return Python's name of it."""
        return {1: "<stdout>", 2: "<stderr>"}.get(self._number, str(self._number))

    def writable(self) -> bool:
        """Say that it is."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def isatty(self) -> bool:
        """Say whether a person looks at it."""
        return os.isatty(self._number)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write the data, or count its lines; return its length."""
        text = bytes(data)
        lines = text.count(b"\n")
        if self.lost:
            lost, self.lost = self.lost, 0
            torn = "\n" if self._torn else ""
            if not self._write(f"{torn}{self.told(lost)}\n".encode(errors="backslashreplace")):
                self.lost = lost + lines
                return len(text)
        if text and not self._write(text):
            self.lost += lines
        return len(text)

    def _write(self, text: bytes) -> bool:
        give_up = (
            None if self._patience_s is None else monotonic() + (0.0 if self._stuck else self._patience_s)
        )
        left = memoryview(text)
        try:
            while left:
                if not self._ready(give_up):
                    self._stuck = True
                    break
                self._stuck = False
                left = left[os.write(self._number, left[:PIECE_BYTES]) :]
        except OSError:
            pass
        self._torn = 0 < len(left) < len(text) or (self._torn and len(left) == len(text))
        return not left

    def _ready(self, give_up: float | None) -> bool:
        """Wait until a piece can be written; return whether it can."""
        poller = select.poll()
        poller.register(self._number, select.POLLOUT)
        return bool(poller.poll(None if give_up is None else max(0.0, give_up - monotonic()) * 1e3))


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")


def check_logging(level: str, format_: str) -> None:
    """Raise ValueError that says what would be right, unless both are known."""
    if level not in LEVELS:
        raise ValueError(
            f"log_level is {level!r}; it must be DEBUG, INFO, WARNING or ERROR{did_you_mean(level, LEVELS)}"
        )
    if format_ not in FORMATS:
        raise ValueError(
            f"log_format is {format_!r}; it must be text or json{did_you_mean(format_, FORMATS)}"
        )


def set_up_logging(process: str, level: str, format_: str) -> None:
    """Have this process log under a name; raise ValueError on an unknown level or format."""
    check_logging(level, format_)
    formatter = JsonFormatter(process) if format_ == "json" else TextFormatter(process)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    output = getattr(sys.stderr, "buffer", None)
    if isinstance(output, Output):
        output.told = lambda lost: formatter.format(_lost(lost))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _lost(lines: int) -> logging.LogRecord:
    """Return what a log says once it can be written again."""
    text = "%d lines before this one could not be written here, and are lost"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lines,), None)


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 worker-0 WARNING mainspring.worker.server: text``."""

    def __init__(self, process: str) -> None:
        escaped = process.replace("%", "%%")
        super().__init__(
            f"%(asctime)s.%(msecs)03d {escaped} %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )


class JsonFormatter(logging.Formatter):
    """One object on each line: time (UTC), process, level, logger, message, and a traceback if any."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "process": self._process,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields)
