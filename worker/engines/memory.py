"""Host memory of an engine: allocated before the first request, filled from files at the speed of memory.

Memory that no model needs is never taken from the system: it may be more than a container's limit leaves, and
would end the process for nothing. So PREPARE has as much of it taken as its model will need, before the model
may be loaded.

``read`` copies through the kernel, and mapping a part for each copy costs a page-table entry for each 4 KiB
of it, twice: between 4 % and 40 % of the copy, depending on how the page cache holds the file. So a file
stays mapped for as long as copies may be made of it; for that, the kernel keeps 0.2 % of its length. The
mapping is not locked: under memory pressure its pages may be dropped. A copy first asks the kernel for
dropped pages and brings them in again, so that a file that can't be read is found out before any of it is
touched. Long calls release the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Sequence

import numpy as np

from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.engine import Bytes

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
        while there is room (`mainspring.cluster.pages`): those with longer ones than a page at the high end.
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
