"""A file of lines that a thread of its own writes: bounded in bytes, rotated, and never waited for.

What finds no room, here or on the disk, is dropped and counted; what is in the file is whole lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("mainspring.gateway")

MOST_WAITING: Final = 65_536
"""Lines that may wait to be written."""
_TOGETHER: Final = 64
"""Lines that are written at once: making them keeps the thread that serves from running."""
_PAUSE_S: Final = 0.2
"""Between two looks whether there are some."""


class LogFile:
    """See the module's docstring. `add` belongs to one thread, the rest to the writer's."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        older_files: int,
        encode: Callable[[Any], bytes],
        drop: Callable[[int], object],
    ) -> None:
        """Beside the file at ``path`` there are at most so many older ones, ``path.1`` the youngest.

        ``encode`` makes a line of what was added, without its end; ``drop`` is told how many lines were
        dropped, in either thread. Raises OSError if the file can't be opened.
        """
        self._path, self._max_bytes, self._older_files = os.path.abspath(path), max_bytes, older_files
        self._encode = encode
        self._drop = drop
        self._waiting: deque[Any] = deque()
        self._file = self._opened()
        self._failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-file", daemon=True)
        self._thread.start()

    def add(self, line: Any) -> None:
        """Have a line written soon."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(line)
        else:
            self._drop(1)

    def close(self, patience_s: float) -> None:
        """Write what waits, and close the file, within a time; a disk that hangs is left to itself."""
        self._stopping.set()
        self._thread.join(patience_s)

    # --- the writer's thread ---

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self._write_waiting()
        self._write_waiting()
        os.close(self._file)

    def _write_waiting(self) -> None:
        while self._waiting:
            lines: list[bytes] = []
            while self._waiting and len(lines) < _TOGETHER:
                lines.append(self._encode(self._waiting.popleft()) + b"\n")
            data = b"".join(lines)
            try:
                self._file = self._current(len(data))
                self._append(data)
                self._failing = False
            except OSError as error:
                self._drop(len(lines))
                if not self._failing:
                    log.warning("lines of %s are dropped: %s", self._path, error)
                self._failing = True

    def _append(self, data: bytes) -> None:
        """Write all of it or nothing: half a line would spoil the next one."""
        before = os.fstat(self._file)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written and stat.S_ISREG(before.st_mode):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before.st_size)
            raise

    def _current(self, more_bytes: int) -> int:
        """Return the file to write to: another one if this was moved away, or would be too large."""
        now = os.fstat(self._file)
        if not stat.S_ISREG(now.st_mode):
            return self._file
        try:
            there = os.stat(self._path)
            moved = (there.st_ino, there.st_dev) != (now.st_ino, now.st_dev)
        except FileNotFoundError:
            moved = True
        if not moved:
            if not now.st_size or now.st_size + more_bytes <= self._max_bytes:
                return self._file
            self._rotate()
        file = self._opened()
        os.close(self._file)
        return file

    def _rotate(self) -> None:
        """Give each file the next number; the last one goes."""
        for number in range(self._older_files, 0, -1):
            younger = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(younger, f"{self._path}.{number}")

    def _opened(self) -> int:
        # Without O_NONBLOCK a named pipe that nobody reads would hold the start up.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o640)
