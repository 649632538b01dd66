"""Memory that processes of one host share: files in memory without a name (memfd_create(2)), and their maps.

The process that makes such a file is the only one that can write to it: the file is sealed against further
writable mapping, and against a change of its size, so that nobody who has mapped it can lose what they read.
Other processes are given its descriptor over a local connection (`Channel.send_descriptor`) and map it to
read. The kernel frees the memory after the last of them, however it ended; a page takes memory once something
was written to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import Final

import numpy as np
import numpy.typing as npt

HUGE_PAGE_BYTES: Final = 2 << 20
SEAL_FUTURE_WRITE: Final = 0x10
"""``F_SEAL_FUTURE_WRITE`` of Linux 5.1, for which Python has no name."""
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

Bytes = npt.NDArray[np.uint8]
"""A one-dimensional array of bytes."""


class Unusable(ValueError):
    """A descriptor that another process has given is not of memory that can be mapped; the text says why."""


class OwnMemory:
    """Memory that this process writes and others read."""

    def __init__(self, name: str, size: int, *, huge: bool = True) -> None:
        """Make memory of at least ``size`` bytes, all zero; ``name`` shows in ``/proc/PID/maps``.

        It is of huge pages if the host keeps enough of them (``vm.nr_hugepages``) and ``huge`` allows them.
        Raises OSError if memory, descriptors or addresses are short.
        """
        self.size = -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        """Size in bytes, a multiple of `HUGE_PAGE_BYTES`."""
        try:
            if not huge:
                raise OSError
            self.descriptor, mapping = _make(name, self.size, os.MFD_HUGETLB | os.MFD_HUGE_2MB)
            self.huge = True
            """True if its pages are huge ones that the host had kept."""
        except OSError:
            self.descriptor, mapping = _make(name, self.size, 0)
            self.huge = False
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: Bytes = np.frombuffer(mapping, np.uint8)
        self._closed = False

    def close(self) -> None:
        """Give no descriptor of it away any more; the mapping lasts while something refers to its bytes."""
        if not self._closed:
            self._closed = True
            os.close(self.descriptor)


def _make(name: str, size: int, flags: int) -> tuple[int, mmap.mmap]:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(descriptor, size)
        mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS | SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
        except OSError:
            # A kernel before 5.1: others could write, as they can to all memory of their user's processes.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, mapping


def map_to_read(descriptor: int, size: int, *, huge: bool = True) -> Bytes:
    """Return the first ``size`` bytes, one or more, of memory that another process has made.

    The descriptor is closed, the bytes stay mapped while something refers to them. Raises `Unusable` if its
    size is not sealed, or smaller: reading behind its end would end this process; so would reading a huge
    page that its host is short of, so ``huge`` says whether its owner is trusted with such pages. Raises
    OSError if there is no room to map it.
    """
    try:
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:
            raise Unusable("it is not a file in memory, as memfd_create(2) makes") from None
        if not seals & fcntl.F_SEAL_SHRINK:
            raise Unusable("its size is not sealed (F_SEAL_SHRINK)")
        if not huge and os.fstatvfs(descriptor).f_bsize > mmap.PAGESIZE:
            raise Unusable("it is of huge pages")
        found = os.fstat(descriptor).st_size
        if not 0 < size <= found:
            raise Unusable(f"it has {found:,} bytes, and {size:,} were announced")
        try:
            mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except PermissionError:
            raise Unusable("it can't be mapped to read") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapping, np.uint8)
