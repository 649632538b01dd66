"""Sockets in a folder, for processes of one host: addresses like ``unix:///run/mainspring/controller.sock``.

A socket belongs to its user alone (mode 0600), and each end also checks the other's user with the kernel, so
that other users who may write to the folder gain nothing. The next listener removes a socket that a killed
process has left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

PREFIX = "unix://"
MAX_PATH_BYTES = 107
"""The longest path of a socket (unix(7)); a longer one is reached through its folder's descriptor."""


class Local(NamedTuple):
    """A socket's path on this host to listen at or connect to."""

    path: str
    """An absolute path."""

    def __str__(self) -> str:
        return PREFIX + self.path


def parse_local(address: str) -> Local:
    """Return the path of a local address; raise ValueError unless it is absolute."""
    path = address.removeprefix(PREFIX)
    if not path.startswith("/") or path.endswith("/") or not path.isprintable():
        raise ValueError(
            f"{address!r} is not an address; write it like {PREFIX}/run/mainspring/controller.sock"
        )
    return Local(path)


def listen_local(where: Local, backlog: int) -> socket.socket:
    """Listen in a folder; raise OSError if another process listens there, or that is not possible."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _folder_of(where) as (folder, name):
            # Only one process at a time may check whether a socket is abandoned.
            fcntl.flock(folder, fcntl.LOCK_EX)
            _remove_abandoned(where, folder, name)
            os.fchmod(sock.fileno(), 0o600)
            sock.bind(_short(where, folder, name))
            sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def connect_local(where: Local) -> socket.socket:
    """Return a connection; raise OSError if no process listens there, or too many connections wait."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _folder_of(where) as (folder, name):
            sock.connect(_short(where, folder, name))
    except OSError:
        sock.close()
        raise
    return sock


def remove_local(where: Local, inode: int) -> None:
    """Remove the socket of a listener that stops, unless another process has replaced it."""
    try:
        if os.stat(where.path).st_ino == inode:
            os.unlink(where.path)
    except OSError:
        pass


def inode_of(where: Local) -> int:
    """Return the number that distinguishes a socket's file from its successor; 0 if there is no file."""
    try:
        return os.stat(where.path).st_ino
    except OSError:
        return 0


@contextmanager
def _folder_of(where: Local) -> Iterator[tuple[int, str]]:
    parent, name = os.path.split(where.path)
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder, name
    finally:
        os.close(folder)


def _short(where: Local, folder: int, name: str) -> str:
    if len(os.fsencode(where.path)) <= MAX_PATH_BYTES:
        return where.path
    return f"/proc/self/fd/{folder}/{name}"


def _remove_abandoned(where: Local, folder: int, name: str) -> None:
    """Remove an abandoned socket; raise OSError if a process listens on it, or it is not a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(_short(where, folder, name))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if not stat.S_ISSOCK(os.stat(name, dir_fd=folder).st_mode):
                raise OSError(errno.EEXIST, "a file that is not a socket has this name") from None
            os.unlink(name, dir_fd=folder)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
