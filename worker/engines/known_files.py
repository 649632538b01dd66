"""Files that were hashed and found right, remembered over a worker's restart in a file of its user's own.

A line has a file's device, inode, length, times of modification and change, and SHA-256. Nobody
but the kernel sets the time of change, so an altered file differs. A file that changed in the last moments is
not remembered: it could change once more within the same tick of the file system's clock. Workers of a host
that share a store append to one file; a line that can't be read is passed over.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

State = tuple[int, int, int, int, int]
"""Device, inode, length, and times of modification and change in nanoseconds."""
LOG = logging.getLogger(__name__)
MOST: Final = 65_536
"""Most files that are remembered as right; a forgotten one, the oldest, is hashed again if it returns."""
SETTLED_NS: Final = 2_000_000_000
"""Age of a file's last change from which on it is remembered over a restart."""
_LINE: Final = re.compile(r"(\d{1,20}) (\d{1,20}) (\d{1,20}) (-?\d{1,20}) (-?\d{1,20}) ([0-9a-f]{64})")
_LINE_BYTES: Final = 170
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def state_of(file: int) -> State:
    """Return the state of an open file."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def default_path(store: Path) -> Path:
    """Return where the files of a store are remembered: this user's own folder for temporary files."""
    name = hashlib.sha256(str(store.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"mainspring-{os.geteuid()}" / f"checked-{name}"


class KnownFiles:
    """The files found right; used by any thread, a step at a time."""

    def __init__(self, path: Path | None = None) -> None:
        """``path`` is where they are remembered; None: nowhere. What can't be used there is left alone."""
        self._known: dict[tuple[State, str], None] = {}
        self._file: int | None = None
        self._path = path
        if path is not None:
            try:
                self._read(path)
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                LOG.info(
                    "files found right are not remembered in %s (%s): they are hashed again", path, error
                )

    def __contains__(self, known: tuple[State, str]) -> bool:
        return known in self._known

    def add(self, state: State, sha256: str) -> None:
        """Remember a file that is right now."""
        self._keep(state, sha256)
        if self._path is None or time.time_ns() - max(state[3:]) < SETTLED_NS:
            return
        try:
            if self._file is None:
                self._file = _opened(self._path, _FLAGS | os.O_CREAT)
            os.write(self._file, f"{' '.join(map(str, state))} {sha256}\n".encode())
        except (OSError, ValueError) as error:
            LOG.info("a file found right can't be remembered: %s", error)
            self.close()

    def close(self) -> None:
        """Remember no further files over a restart."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._path = None

    def _keep(self, state: State, sha256: str) -> None:
        while len(self._known) >= MOST:
            self._known.pop(next(iter(self._known)), None)
        self._known[state, sha256] = None

    def _read(self, path: Path) -> None:
        file = _opened(path, _FLAGS)
        with os.fdopen(file, encoding="ascii", errors="replace") as lines:
            if os.fstat(file).st_size > 2 * MOST * _LINE_BYTES:
                # Mostly of files that are gone: it begins again.
                os.ftruncate(file, 0)
            for line in lines:
                if match := _LINE.fullmatch(line.rstrip("\n")):
                    device, inode, size, modified, changed = map(int, match.groups()[:5])
                    self._keep((device, inode, size, modified, changed), match[6])


def _opened(path: Path, flags: int) -> int:
    """Open a file that only this user may have written; raise `ValueError` if others could have."""
    if flags & os.O_CREAT:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(path.parent.lstat(), stat.S_ISDIR)
    file = os.open(path, flags, 0o600)
    try:
        _check_own(os.fstat(file), stat.S_ISREG)
    except ValueError:
        os.close(file)
        raise
    return file


def _check_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Raise `ValueError` for what others could have written."""
    if not is_kind(found.st_mode):
        raise ValueError("something else is there")
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ValueError("it is not this user's alone")
