"""Digests of a version's files, and stamps that tell cheaply whether files are still the same."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 4096
"""Most files in one version's folder; further files are not part of the model."""

_MOST_LINKS = 8
"""Most links to folders, within one another."""

FileStamp = tuple[str, int, int, int, int]
"""A file's path, size, time of change in ns, inode, and the kernel's own time of change in ns, which nobody
can set: it tells of a file that was written anew with its size and time as they were."""
Stamp = tuple[FileStamp, ...]
"""The stamps of all files that count."""


def stamp_of(folder: Path | str) -> Stamp:
    """Return the stamp of the files that a version is made of, sorted; raise OSError.

    Thousands of models are looked at every few seconds, so this is a system call for each folder and file
    and little else.
    """
    stamps = sorted(_stamps(str(folder), ""), key=lambda stamp: stamp[0].split("/"))
    return tuple(stamps[:MAX_FILES])


def stamp_of_file(path: str) -> Stamp:
    """Return the stamp of one file, empty if there is no such file; raise OSError if it can't be read."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    if not stat.S_ISREG(status.st_mode):
        return ()
    return (_stamp(os.path.basename(path), status),)


def digest_of(folder: Path | str, stamp: Stamp) -> str:
    """Return the SHA-256 of the names and contents of the files with this stamp; raise OSError."""
    digest = hashlib.sha256()
    for name, *_ in stamp:
        with open(f"{folder}/{name}", "rb") as file:
            digest.update(f"{name}\0{os.fstat(file.fileno()).st_size}\0".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _stamp(name: str, status: os.stat_result) -> FileStamp:
    return name, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _stamps(folder: str, under: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[FileStamp]:
    """Yield the stamps of a folder's files, and of those in folders within it.

    ``above`` are the folders that links led through: none is entered from within itself.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            name = under + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _stamps(entry.path, f"{name}/", above)
            elif entry.is_file():
                yield _stamp(name, entry.stat())
            elif entry.is_dir():
                status, own = entry.stat(), os.stat(folder)
                there = (status.st_dev, status.st_ino)
                within = (*above, (own.st_dev, own.st_ino))
                if there not in within and len(within) <= _MOST_LINKS:
                    yield from _stamps(entry.path, f"{name}/", (*within, there))
