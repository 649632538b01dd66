"""What the file system says of a model's files, to notice that one of them was changed, made or removed."""

from __future__ import annotations

import os
from pathlib import Path

from mainspring.messages.model import ModelSpec

Fingerprint = tuple[tuple[str, int, int, int, int], ...]
"""Of each file: its path, device, inode, length and time of modification; zeros if it can't be looked at."""


def fingerprint(root: Path, model: ModelSpec) -> Fingerprint:
    """Return that of a model's manifest, weights and executable in the store at ``root``; nothing is read."""
    executable = root / "executables" / model.executable
    return (
        *manifest_fingerprint(root, model.name),
        _look_at(root / "weights" / f"{model.weights_hash}.bin"),
        _look_at(executable),
        *(_look_at(path) for path in _files(executable)),
    )


def manifest_fingerprint(root: Path, name: str) -> Fingerprint:
    """Return that of a model's manifest alone."""
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
    # Who may read a file changes the time of its last change of state alone.
    return str(path), found.st_dev, found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)
