"""The store's files as a worker uses them, and the host memory that weights are read into.

Hashing a file takes about as long as reading it, so a state that was found right is remembered, over a
restart, too (`known_files`).

The files of a model that a worker failed on are watched until they change and another try is worthwhile. The
PREPARE thread checks those files alone, a bounded number at a time, so that serving never waits for the file
system. The executors report failures and successes, the network thread takes changed models.

Host memory is allocated before the first request, and filled from files at the speed of memory. Memory that
no model needs is never taken from the system: it may be more than a container's limit leaves. So PREPARE has
as much of it taken as its model will need, before the model may be loaded. ``read`` copies through the
kernel, and mapping a part for each copy costs a page-table entry for each 4 KiB of it, twice: between 4 % and
40 % of the copy. So a file stays mapped for as long as copies may be made of it; for that, the kernel keeps
0.2 % of its length. The mapping is not locked: a copy first asks the kernel for pages that it dropped, so
that a file that can't be read is found out before memory is touched. Long calls release the interpreter's
lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import math
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Fingerprint, Store
from mainspring.messages.model import PAGE_BYTES, ModelSpec, TensorSpec
from mainspring.messages.targets import cannot_run
from mainspring.worker.engine import Bytes, EngineError
from mainspring.worker.engines.known_files import KnownFiles, state_of

_CHUNK_BYTES = 4 << 20
_READ_BYTES = 16 << 20
"""Bytes of a file that are read and hashed at a time while it is read into memory."""
INTERVAL_NS = 1_000_000_000
"""Time between two checks."""
LOOKED_AT = 256
"""Most models that one check covers; the next check continues with the others."""


def check_runs(model: ModelSpec, targets: Sequence[str]) -> None:
    """Raise `EngineError` unless a worker of these targets can run the artifact, as far as is known."""
    if why := cannot_run(model, targets):
        raise EngineError(why)


def stored(store: Store, model: ModelSpec) -> Manifest:
    """Return the manifest of a model's artifact for this worker's target, under the model's name.

    Raises `StoreError` if the store lacks it or it is damaged, `EngineError` if it is another artifact.
    """
    manifest = msgspec.structs.replace(store.manifest(model.stored_name), name=model.name)
    check_artifact(manifest, model)
    return manifest


def check_artifact(manifest: Manifest, model: ModelSpec) -> None:
    """Raise `EngineError` unless the manifest and the model are of one artifact."""
    compiled = {*model.batch_sizes} <= {*manifest.batch_sizes}
    if not compiled or _artifact(manifest.spec()) != _artifact(model):
        raise EngineError(
            f"the store holds another artifact named {model.name} than the controller asks for: "
            "give the controller and the workers the same store, or compile the model again"
        )


def _artifact(model: ModelSpec) -> ModelSpec:
    """Return what is equal in all specifications of one artifact.

    What clients call the model, the shapes in which they see its tensors, and which of its batch sizes may be
    used, are not part of that.
    """
    inputs, outputs = (tuple(map(_flat, tensors)) for tensors in (model.inputs, model.outputs))
    return msgspec.structs.replace(
        model,
        profiles={},
        workspace_bytes=0,
        served_as="",
        version=1,
        inputs=inputs,
        outputs=outputs,
        batch_sizes=(),
        unshared="",
        target="",
        stored_as="",
        others=(),
    )


def _flat(tensor: TensorSpec) -> TensorSpec:
    return msgspec.structs.replace(tensor, shape=(math.prod(tensor.shape),))


class Integrity:
    """Checks open files against the hashes in their manifests."""

    def __init__(self, known: KnownFiles | None = None) -> None:
        """``known`` are files that were found right before."""
        self._right = KnownFiles() if known is None else known

    def holds(self, file: int, expected: str) -> bool:
        """Return whether `check` has found the file right in its present state; nothing is read."""
        return (state_of(file), expected) in self._right

    def check(self, file: int, expected: str, path: object, remedy: str) -> None:
        """Raise `EngineError`, with ``path`` and ``remedy``, unless the file's SHA-256 is ``expected``.

        Reads the whole file the first time, and again only after it was written to.
        """
        state = state_of(file)
        if (state, expected) in self._right:
            return
        digest = hashlib.sha256()
        offset = 0
        while chunk := os.pread(file, _CHUNK_BYTES, offset):
            digest.update(chunk)
            offset += len(chunk)
        if digest.hexdigest() != expected:
            raise altered(path, remedy)
        self._right.add(state, expected)


def read_weights(path: Path, expected: str, remedy: str, memory: memoryview) -> None:
    """Fill the memory from a file; raise `EngineError`, with ``remedy``, unless its SHA-256 is right."""
    digest, offset = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(part := memory[offset : offset + _READ_BYTES]):
            digest.update(part[:count])
            offset += count
    if offset < len(memory) or digest.hexdigest() != expected:
        raise altered(path, remedy)


def altered(path: object, remedy: str) -> EngineError:
    """Return the error for a file that is not what the manifest says."""
    return EngineError(f"{path} was altered after it was compiled; {remedy}")


class _Waiting(NamedTuple):
    model: ModelSpec
    files: Fingerprint
    """State of the files when it failed, or when their change was last reported."""


def _never(_name: str, _now_ns: int) -> bool:
    """Leave it to the files."""
    return False


class StoreWatch:
    """Each method names the threads that may call it; a dictionary's single steps need no lock."""

    def __init__(self, store: Store, again: Callable[[str, int], bool] = _never) -> None:
        """``again`` says, by name and instant, whether another try is worthwhile though no file changed."""
        self._store = store
        self._again = again
        self._waiting: dict[str, _Waiting] = {}
        self._reported: dict[str, Fingerprint] = {}
        """Models that are about to be tried again, with their files when the change was reported."""
        self._changed: deque[ModelSpec] = deque()
        self._next_look_ns = 0

    def failed(self, model: ModelSpec) -> None:
        """PREPARE or LOAD thread: note a model that could not be prepared or loaded."""
        if model.name not in self._waiting:
            files = self._reported.pop(model.name, None) or self._store.fingerprint(model)
            self._waiting[model.name] = _Waiting(model, files)

    def worked(self, name: str) -> None:
        """PREPARE or LOAD thread: note a model that was prepared or loaded."""
        if self._waiting or self._reported:
            self._waiting.pop(name, None)
            self._reported.pop(name, None)

    def due(self, now_ns: int) -> bool:
        """Network thread: whether to call `look` now; true at most once in `INTERVAL_NS`."""
        if not self._waiting or now_ns < self._next_look_ns:
            return False
        self._next_look_ns = now_ns + INTERVAL_NS
        return True

    def look(self) -> None:
        """PREPARE thread: check the files of the next models that failed."""
        for name in list(islice(self._waiting, LOOKED_AT)):
            if (waiting := self._waiting.pop(name, None)) is None:
                continue
            model, files = waiting
            now = self._store.fingerprint(model)
            found = self._read(model) if now != files else None
            if found is None and self._again(name, time.monotonic_ns()):
                found = model
            if found is None:
                self._waiting[name] = _Waiting(model, now)
            else:
                self._reported[name] = now
                self._changed.append(found)

    def changed(self) -> ModelSpec | None:
        """Network thread: return a model whose files have changed, as its manifest has it now, once."""
        return self._changed.popleft() if self._changed else None

    def _read(self, model: ModelSpec) -> ModelSpec | None:
        try:
            found = self._store.manifest(model.stored_name).spec()
        except StoreError:
            return None  # Another change may mend the manifest too.
        # Of its artifacts for other targets nothing is known but what it was told.
        return msgspec.structs.replace(found, name=model.name, stored_as=model.stored_as, others=model.others)


HUGE_PAGE_BYTES = 2 * 1024 * 1024
_POPULATE_READ = 22
"""``MADV_POPULATE_READ`` of Linux 5.14, for which Python 3.11 has no name."""
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``, likewise: it changes no byte."""
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def allocate(size: int) -> Bytes:
    """Return ``size`` zero bytes, 2 MiB-aligned; raise `MemoryError` if there are not enough addresses.

    The system gives each page of them when it is first written, or by `take`.
    """
    try:
        mapping = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        wanted = f"{size / 2**20:.0f} MiB"
        raise MemoryError(f"can't allocate {wanted}: {error.strerror}; use fewer pages") from error
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    return whole[start : start + size]


def take(memory: Bytes) -> None:
    """Have the system give all pages of allocated memory now, so that whoever writes there first need not
    wait for them; its bytes stay as they are, whoever reads or writes them meanwhile.

    Linux before 5.14 gives them when they are written.
    """
    if memory.size:
        begin = memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        _libc.madvise(begin, memory.ctypes.data + memory.size - begin, _POPULATE_WRITE)


class Arena:
    """Memory of the pages of weights."""

    def __init__(self, pages: int) -> None:
        self._memory = allocate(pages * PAGE_BYTES)
        self.address = int(self._memory.ctypes.data)
        """Address of the first page."""
        self._first = self._last = 0
        """Number of pages at either end that were taken from the system."""

    def expect(self, models: Iterable[Sequence[int]]) -> None:
        """Have the pages taken that models with these extents need together, where the controller puts them
        while there is room (`cluster.workers.PageTable`): those with longer ones than a page at the high end.
        """
        first = last = 0
        for extents in models:
            pages = sum(extents)
            if pages == len(extents):
                first += pages
            else:
                last += pages
        if first > self._first:
            take(self._memory[self._first * PAGE_BYTES : first * PAGE_BYTES])
            self._first = first
        if last > self._last:
            end = self._memory.size
            take(self._memory[max(0, end - last * PAGE_BYTES) : max(0, end - self._last * PAGE_BYTES)])
            self._last = last


class MappedFile:
    """The first bytes of an open file, mapped until `close`; later writes to the file appear here."""

    def __init__(self, file: int, size: int) -> None:
        """Map ``size`` bytes, one or more, of a descriptor that stays open, and read them into memory.

        Raises `EOFError` if the file is shorter, `OSError` if it can't be read.
        """
        self._file = file
        self._size = size
        self._check_length(size)
        mapped = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        if mapped == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address: int = mapped
        """Address of the file's first byte."""
        # Where all memory is locked, weights that don't all fit into memory would be fatal.
        _libc.munlock(mapped, size)
        self._tells_what_is_in = _may_ask(file)
        try:
            _bring_in(mapped, size)
        except BaseException:
            self.close()
            raise

    def copy(self, offset: int, size: int, into: int) -> None:
        """Copy ``size`` bytes at ``offset``, a multiple of the system's page size, to the address ``into``.

        Raises `EOFError` if the file is shorter, `OSError` if it can't be read; nothing is copied then. The
        file must not be truncated while this runs.
        """
        self._check_length(offset + size)
        begin = self.address + offset
        if not (self._tells_what_is_in and _is_in(begin, size)):
            _bring_in(begin, size)
        ctypes.memmove(into, begin, size)

    def close(self) -> None:
        """Unmap the file; a second call does nothing."""
        if self.address:
            _libc.munmap(self.address, self._size)
            self.address = 0

    def _check_length(self, wanted: int) -> None:
        # This costs a fifth of fstat.
        if os.lseek(self._file, 0, os.SEEK_END) < wanted:
            raise EOFError(f"the file ends before byte {wanted}")


def _bring_in(begin: int, size: int) -> None:
    """Have the kernel read the pages that are not in memory; raise `OSError` if it can't."""
    if _libc.madvise(begin, size, _POPULATE_READ):
        code = ctypes.get_errno()
        # An older kernel does not know the advice: the copy itself then brings the file in.
        if code != errno.EINVAL:
            raise OSError(code, os.strerror(code))


def _is_in(begin: int, size: int) -> bool:
    """Return whether all of a mapped range is in memory; this costs a tenth of `_bring_in` for such a
    range."""
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    return not _libc.mincore(begin, size, pages) and b"\0" not in pages.raw


def _may_ask(file: int) -> bool:
    """Return whether the kernel reports which pages are in memory: of other users' files it reports all."""
    return os.fstat(file).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{file}", os.W_OK)
