"""ZeroMQ's sockets for programs of one user on one host: ``ipc://``, in a folder of that user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mainspring.transport.addresses import Address, in_numbers, is_loopback

PREFIX = "ipc://"


def ipc_path(address: Address) -> Path | None:
    """Return the path of the socket that stands for an address of the loopback; None for any other."""
    if not is_loopback(address.host):
        return None
    numbers = in_numbers(Address("127.0.0.1", address.port) if address.host == "localhost" else address)
    host = address.host if numbers is None else numbers[1][0]
    return _folder() / f"{host}:{address.port}"


def make_folder(path: Path) -> None:
    """Make the folder of a socket; raise OSError unless it is this user's alone."""
    folder = path.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise OSError(
            f"the folder {folder} is not this user's alone (mode 0700): remove it, or set TMPDIR to another"
        )


def serves(path: Path) -> bool:
    """Return whether there is a socket that only a process of this user can have made."""
    try:
        return _is_own(path.parent) and stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def _folder() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"mainspring-{os.geteuid()}"


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
