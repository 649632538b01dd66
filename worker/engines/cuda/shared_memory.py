"""Host memory that several processes share, and that the kernel frees after the last of them.

A segment is a file in memory without a name (memfd): another process of the same user opens it through
``/proc/PID/fd`` of a process that has it. So killed processes leave nothing behind, and ``/dev/shm``, which
is small in containers, is not needed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np

from mainspring.worker.engine import Bytes, EngineError
from mainspring.worker.engines.memory import HUGE_PAGE_BYTES


class SharedSegment:
    """A segment in this process's memory."""

    def __init__(self, file: int) -> None:
        """Map an open file, which this object owns from now on."""
        self.file = file
        found = os.fstat(file)
        self.size, self.inode = found.st_size, found.st_ino
        self._mapping = mmap.mmap(file, self.size, flags=mmap.MAP_SHARED)
        with contextlib.suppress(OSError):
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: Bytes = np.frombuffer(self._mapping, np.uint8)
        self.address = int(self._bytes.ctypes.data)

    def part(self, offset: int, size: int) -> memoryview:
        """Return a writable piece, which must not outlive the segment."""
        return self._bytes[offset : offset + size].data

    def close(self) -> None:
        """Unmap it; the memory stays while another process has it."""
        del self._bytes
        with contextlib.suppress(BufferError):
            self._mapping.close()
        os.close(self.file)


def make_segment(wanted: int) -> SharedSegment:
    """Return a new segment of zeros, of at least ``wanted`` bytes; raise `EngineError` if memory is short."""
    size = -(-wanted // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    try:
        file = os.memfd_create("mainspring-weights", os.MFD_CLOEXEC)
    except OSError as error:
        raise EngineError(f"there is no memory to share between workers: {error.strerror}") from error
    try:
        os.ftruncate(file, size)
        return SharedSegment(file)
    except (OSError, ValueError) as error:
        os.close(file)
        raise EngineError(
            f"the host can't give {size >> 20} MiB for weights ({error}); set [worker] host_weights_bytes "
            "lower"
        ) from error


def open_segment(pid: int, file: int, inode: int) -> SharedSegment | None:
    """Return a segment that another process has open as this file; None if the file has another inode."""
    try:
        found = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(found).st_ino != inode:
        os.close(found)
        return None
    return SharedSegment(found)


def started(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks since boot; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything; the start is the twentieth field behind it.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(fields[18])
