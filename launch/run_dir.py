"""The folder of a running cluster, which belongs to one cluster at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.launch.tables import ConfigError

LOCK_NAME = "lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder and keep other clusters out of it; raise `ConfigError` if one is in it.

    The kernel gives the lock back when this process ends, however it does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_NAME).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another cluster is running in {folder}; choose another folder with --run-dir"
            ) from None
        yield
