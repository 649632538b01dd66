"""Digests of a version's files, and stamps that tell cheaply whether files are still the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

MAX_FILES = 4096
"""In one version's folder; what comes after them is no part of the model."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file: its path, size, time of change in ns, and inode."""


def files_of(folder: Path) -> list[Path]:
    """Return the files that a version is made of, sorted; raise OSError."""
    return sorted(path for path in folder.rglob("*") if path.is_file())[:MAX_FILES]


def stamp_of(folder: Path, paths: list[Path]) -> Stamp:
    """Return the files' stamp; raise OSError."""
    stamps = []
    for path in paths:
        status = path.stat()
        stamps.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(stamps)


def digest_of(folder: Path, paths: list[Path]) -> str:
    """Return the SHA-256 of the files' names and contents; raise OSError."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
