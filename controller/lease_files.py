"""The lease of controllers of one machine, in files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from mainspring.controller.lease import TTL_NS, Lease, Store, StoreError

LOOK_NS: Final = 20_000_000


class _Record(msgspec.Struct, frozen=True):
    """The content of a lease's file."""

    holder: str
    address: str
    until_ns: int
    """Instant at which it ends on the machine's monotonic clock, which all its processes share; 0: given
    back."""


_DECODER = msgspec.json.Decoder(_Record)
_RECORD_BYTES: Final = 4096


class FileStore:
    """Keeps the lease of controllers of one machine in files beside ``path``, one for each epoch.

    A claim is a link to a finished file under the name of the epoch, which one process alone can make. The
    holder alone writes it from then on, and holds a lock on it that ends with its process, however it ends.
    No step waits for another process, so one that is stopped anywhere keeps nobody from claiming.
    """

    def __init__(self, path: str, holder: str, address: str = "", ttl_ns: int = TTL_NS) -> None:
        """Raise OSError if the folder can't be used."""
        self._path = Path(path).absolute()
        self._holder, self._address, self.ttl_ns = holder, address, ttl_ns
        self.look_ns = LOOK_NS
        self._name = re.compile(re.escape(self._path.name) + r"\.(\d{1,7})")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = None
        self._epoch = 0
        """The epoch whose file it is; 0 for none."""

    def look(self, now_ns: int) -> Lease | None:
        """See `Store.look`."""
        try:
            epoch = self._highest()
            return self._read(epoch, now_ns) if epoch else None
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error

    def claim(self, now_ns: int, epoch: int) -> bool:
        """See `Store.claim`."""
        try:
            return self._claim(now_ns, epoch)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error

    def renew(self, now_ns: int) -> bool:
        """See `Store.renew`."""
        try:
            if self._file is None or self._highest() != self._epoch:
                self._drop()
                return False
            _write(self._file, _Record(self._holder, self._address, now_ns + self.ttl_ns))
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error
        return True

    def release(self) -> None:
        """See `Store.release`."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                _write(self._file, _Record(self._holder, self._address, 0))
            self._drop()

    def close(self) -> None:
        """Let go of the file; the lease ends with its lock."""
        self._drop()

    def _claim(self, now_ns: int, epoch: int) -> bool:
        highest = self._highest()
        if epoch <= highest or (highest and self._read(highest, now_ns).held):
            return False
        aside = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}.new")
        file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(file, _Record(self._holder, self._address, now_ns + self.ttl_ns))
            os.link(aside, self._of(epoch))
        except FileExistsError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        finally:
            aside.unlink()
        self._drop()
        self._file, self._epoch = file, epoch
        for each in self._epochs():
            if each < epoch:
                self._of(each).unlink(missing_ok=True)
        if self._highest() != epoch:
            # It was claimed and given back twice since the look: what was linked is an old name.
            self._drop()
            return False
        return True

    def _read(self, epoch: int, now_ns: int) -> Lease:
        try:
            file = os.open(self._of(epoch), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another controller has claimed it meanwhile, in a higher one.
            return Lease(epoch, "", held=True)
        try:
            record = _DECODER.decode(os.pread(file, _RECORD_BYTES, 0).rstrip(b"\0 \n"))
            held = now_ns < record.until_ns and (epoch == self._epoch or not _unlocked(file))
            return Lease(epoch, record.holder, record.address, held)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Damaged: its lock says whether its holder lives, and nothing how long it may be silent.
            return Lease(epoch, "", held=not _unlocked(file))
        finally:
            os.close(file)

    def _of(self, epoch: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{epoch}")

    def _epochs(self) -> list[int]:
        found = [self._name.fullmatch(each) for each in os.listdir(self._path.parent)]
        return [int(each[1]) for each in found if each is not None]

    def _highest(self) -> int:
        return max(self._epochs(), default=0)

    def _drop(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._epoch = None, 0


def _write(file: int, record: _Record) -> None:
    """Write a record over the one before in one call; they are of one length."""
    data = msgspec.json.encode(record)
    if len(data) >= _RECORD_BYTES:
        raise OSError(f"a lease's holder and address have {len(data)} bytes")
    os.pwrite(file, data.ljust(_RECORD_BYTES), 0)


def _unlocked(file: int) -> bool:
    """Return whether nobody holds the lock on an open file: its holder is dead."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_store(where: str, holder: str, address: str) -> Store:
    """Return the store that a text such as ``file:/run/cluster/lease`` names.

    Raises ValueError if it names none, OSError if it can't be used.
    """
    scheme, separator, rest = where.partition(":")
    if separator and scheme == "file" and rest:
        return FileStore(rest, holder, address)
    # They bring clients of HTTP with them.
    from mainspring.controller import lease_etcd, lease_kubernetes

    if scheme == lease_kubernetes.SCHEME and rest:
        return lease_kubernetes.in_this_pod(rest, holder, address)
    if scheme == lease_etcd.SCHEME:
        return lease_etcd.EtcdStore(where, holder, address)
    raise ValueError(
        f"the lease is {where!r}; give it as file:PATH, etcd://HOST:PORT, or in Kubernetes as kubernetes:NAME"
    )
