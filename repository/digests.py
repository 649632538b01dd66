"""Digests of a version's files, and stamps that tell cheaply whether files are still the same."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 4096
"""In one version's folder; further files are not part of the model."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file: its path, size, time of change in ns, and inode."""


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
    return ((os.path.basename(path), status.st_size, status.st_mtime_ns, status.st_ino),)


def digest_of(folder: Path | str, stamp: Stamp) -> str:
    """Return the SHA-256 of the names and contents of the files with this stamp; raise OSError."""
    digest = hashlib.sha256()
    for name, *_ in stamp:
        with open(f"{folder}/{name}", "rb") as file:
            digest.update(f"{name}\0{os.fstat(file.fileno()).st_size}\0".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _stamps(folder: str, under: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield the stamps of a folder's files, and of those in folders within it that are not links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = under + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _stamps(entry.path, f"{name}/")
            elif entry.is_file():
                status = entry.stat()
                yield name, status.st_size, status.st_mtime_ns, status.st_ino
