"""What the file system reports about a model's files, to notice changed, new and removed files."""

from __future__ import annotations

import os
from pathlib import Path

from mainspring.messages.model import ModelSpec

Fingerprint = tuple[tuple[str, int, int, int, int], ...]
"""Path, device, inode, length and time of modification of each file; zeros if the file can't be examined."""


def fingerprint(root: Path, model: ModelSpec) -> Fingerprint:
    """Return the fingerprint of a model's manifest, weights and executable in the store at ``root``."""
    executable = root / "executables" / model.executable
    return (
        *manifest_fingerprint(root, model.name),
        _look_at(root / "weights" / f"{model.weights_hash}.bin"),
        _look_at(executable),
        *(_look_at(path) for path in _files(executable)),
    )


def manifest_fingerprint(root: Path, name: str) -> Fingerprint:
    """Return the fingerprint of a model's manifest alone."""
    return (_look_at(root / "models" / name / "manifest.json"),)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _look_at(path: Path) -> tuple[str, int, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return str(path), 0, 0, 0, 0
    # A change of permissions alone changes only the time of the last change of state.
    return str(path), found.st_dev, found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)
