"""Folders that belong to one process at a time: a cluster's, a report's, an event log's."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.messages.tables import ConfigError

LOCK_NAME = "lock"
RUN_DIR_REMEDY = "choose another folder with --run-dir"
OUTPUT_REMEDY = "choose another folder with --output"


@contextmanager
def claimed(folder: Path, user: str = "another cluster", remedy: str = RUN_DIR_REMEDY) -> Iterator[None]:
    """Make the folder and keep others out of it; raise `ConfigError` if one is in it, or it can't be written.

    ``user`` and ``remedy`` are the error's words for who has it and what to do. The kernel gives the lock
    back when this process ends, however it does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not through a link, and without a wait for a pipe's reader: others may have made what is there.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.fdopen(open_private(str(folder / LOCK_NAME), flags), "rb")
    except OSError as error:
        raise ConfigError(f"can't write to the folder {folder}: {error.strerror}; {remedy}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{user} is using the folder {folder}; {remedy}") from None
        yield


def make_private(folder: Path) -> None:
    """Keep other users out of a folder; raise `ConfigError` if it is one of theirs."""
    if folder.stat().st_uid != os.geteuid():
        raise ConfigError(f"the folder {folder} belongs to another user; {RUN_DIR_REMEDY}")
    folder.chmod(0o700)


def open_private(path: str, flags: int) -> int:
    """Open a file for `open`; a new one is this user's alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def clear(folder: Path, remedy: str = RUN_DIR_REMEDY) -> None:
    """Remove what a former cluster left in its folder; raise `ConfigError` if one is still running there."""
    with claimed(folder, remedy=remedy):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK_NAME:
                path.unlink()
