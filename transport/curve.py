"""Files of keys of CURVE, ZeroMQ's encryption (RFC 26): a gateway's, its clients', and whom a gateway knows.

A gateway's file has its secret key. A client's has its own secret key and the gateway's public one. Beside a
gateway's file, `FILE.clients` lists the public keys of the clients that it knows, one a line, each followed
by a name. All keys are in Z85, 40 characters.

Programs of one user on one host need no keys: ZeroMQ's sockets for them (``ipc://``) are in a folder of that
user alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from mainspring.transport.addresses import Address, in_numbers, is_loopback

IPC_PREFIX = "ipc://"
_LONGEST_PATH: Final = 107
"""Bytes of a socket's path, by the kernel; a folder that leaves too few for a name can't be used."""
_LONGEST_NAME: Final = len("::ffff:127.255.255.255:65535")


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
    name = f"mainspring-{os.geteuid()}"
    own = Path(os.environ.get("TMPDIR") or "/tmp") / name
    fits = len(os.fsencode(own)) + len("/") + _LONGEST_NAME <= _LONGEST_PATH
    return own if fits else Path("/tmp") / name


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


CLIENTS: Final = ".clients"
"""Ending of the list of clients' keys, behind the name of the gateway's file."""
_KEY_CHARACTERS: Final = 40
_VARIABLE: Final = "mainspring keys curve"


class ClientKeys(NamedTuple):
    """Keys by which a client speaks to one gateway."""

    public: bytes
    secret: bytes
    gateway: bytes
    """The gateway's public key."""


def read_gateway_key(path: str | Path) -> bytes:
    """Return a gateway's secret key; raise OSError that says what is wrong with the file."""
    keys = _read(Path(path))
    if len(keys) != 1:
        raise OSError(f"{path} holds no secret key of a gateway, one key of CURVE: `{_VARIABLE}` makes it")
    return keys[0]


def read_client_keys(path: str | Path) -> ClientKeys:
    """Return a client's keys; raise OSError that says what is wrong with the file."""
    keys = _read(Path(path))
    if len(keys) != 2:
        raise OSError(
            f"{path} holds no keys of a client, its own and the gateway's: "
            f"`{_VARIABLE} FILE --gateway GATEWAY_FILE` makes it"
        )
    return ClientKeys(zmq.curve_public(keys[0]), *keys)


def _read(path: Path) -> list[bytes]:
    if not zmq.has("curve"):
        raise OSError("this installation's libzmq has no CURVE; pyzmq's wheels on PyPI have it")
    try:
        open_to = os.stat(path).st_mode & 0o077
        words = path.read_bytes().split()
    except OSError as error:
        raise OSError(error.errno, f"the key of CURVE {path} can't be read: {error.strerror}") from None
    if open_to:
        raise OSError(f"the key of CURVE {path} is open to others: chmod it to 0600")
    return words if all(map(_is_key, words)) else []


def _is_key(text: bytes) -> bool:
    try:
        return len(text) == _KEY_CHARACTERS and len(z85.decode(text)) == 32
    except (KeyError, ValueError, IndexError):
        return False


def list_client(gateway: Path, public: bytes, name: str) -> None:
    """Add a client's public key to those that the gateway with this file knows. Raises OSError."""
    with open(f"{gateway}{CLIENTS}", "ab") as file:
        file.write(public + b" " + name.encode() + b"\n")


class KnownClients:
    """The public keys in a gateway's list, which is read again when it has changed."""

    def __init__(self, gateway: str) -> None:
        """``gateway`` is the file of the gateway's key; raise OSError if its list can't be read."""
        self._path = Path(gateway + CLIENTS)
        self._seen: tuple[int, int, int] | None = None
        self._keys: frozenset[bytes] = frozenset()
        if (fault := self._read()) is not None:
            raise OSError(fault)

    def knows(self, public: bytes) -> bool:
        """Return whether a key, 32 bytes, is listed; while the file can't be read, none is."""
        return self._read() is None and z85.encode(public) in self._keys

    def _read(self) -> str | None:
        """Read the list if it has changed; return what is wrong with it, if something is."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return None
            lines = [line.split() for line in self._path.read_bytes().splitlines()]
        except OSError as error:
            self._seen = None
            return (
                f"the clients' keys {self._path} can't be read: {error.strerror}; "
                f"`{_VARIABLE} FILE --gateway GATEWAY_FILE` makes a client's key and lists it"
            )
        self._keys = frozenset(line[0] for line in lines if line and not line[0].startswith(b"#"))
        self._seen = seen
        return None
