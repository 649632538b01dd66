"""Files of a store that this user may not read or write: whose they are, and what would help."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.compiler.artifact.errors import StoreError


@contextmanager
def reading(path: Path, root: Path) -> Iterator[None]:
    """Turn a refused permission to read ``path``, of the store ``root``, into a `StoreError`."""
    try:
        yield
    except PermissionError as error:
        denied = Path(error.filename or path)
        raise StoreError(
            f"can't read {denied}: {error.strerror}{owner_of(denied, error)}; its owner can make the store "
            f"readable with `chmod -R a+rX {root}`, or choose another store with --store DIR"
        ) from error


def owner_of(path: Path, error: OSError) -> str:
    """Say for an error's sentence whose the path is, or the nearest folder above that is to be seen."""
    if not isinstance(error, PermissionError):
        return ""
    for place in (path, *path.parents):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        return f" ({place} belongs to {_user(owner)}, this is {_user(os.geteuid())})"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
