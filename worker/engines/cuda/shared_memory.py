"""Host memory that several processes share, and that the kernel frees after the last of them.

A segment is a file in memory without a name (memfd): another process of the same user opens it through
``/proc/PID/fd`` of a process that has it. So killed processes leave nothing behind, and ``/dev/shm``, which
is small in containers, is not needed.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
from pathlib import Path

import numpy as np

from mainspring.worker.engine import Bytes, EngineError
from mainspring.worker.engines.artifacts import HUGE_PAGE_BYTES
from mainspring.worker.engines.cuda.numa import interleave

LOG = logging.getLogger(__name__)


class SharedSegment:
    """A segment in this process's memory."""

    def __init__(self, file: int) -> None:
        """Map an open file, which this object owns from now on.

        Raises OSError or ValueError if it can't be mapped; the file is closed then.
        """
        self.file = file
        try:
            found = os.fstat(file)
            self.size, self.inode = found.st_size, found.st_ino
            self._mapping = mmap.mmap(file, self.size, flags=mmap.MAP_SHARED)
        except BaseException:
            os.close(file)
            raise
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
    """Return a new segment of zeros, of at least ``wanted`` bytes; raise `EngineError` if memory is short.

    It is of huge pages if the host keeps enough of them (``vm.nr_hugepages``), of which there are fewer to
    pin. Its pages come from all memory nodes in turn, so that no node's devices are at a disadvantage.
    """
    size = -(-wanted // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    try:
        segment = _map_new(size, os.MFD_HUGETLB | os.MFD_HUGE_2MB)
    except (OSError, ValueError):
        segment = _map_ordinary(size)
    reason = interleave(segment.address, segment.size)
    if reason:
        LOG.info("the weights' memory is not spread over the memory nodes: %s", reason)
    return segment


def _map_ordinary(size: int) -> SharedSegment:
    try:
        return _map_new(size, 0)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"the host can't give {size >> 20} MiB for weights ({error}); set [worker] host_weights_bytes "
            "lower"
        ) from error


def _map_new(size: int, flags: int) -> SharedSegment:
    """Return a new segment; raise OSError or ValueError if it can't be had."""
    file = os.memfd_create("mainspring-weights", os.MFD_CLOEXEC | flags)
    try:
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return SharedSegment(file)


def open_segment(pid: int, file: int, inode: int) -> SharedSegment | None:
    """Return a segment that another process has open as this file; None if the file has another inode.

    Raises `EngineError` if there is no room to map it.
    """
    try:
        found = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(found).st_ino != inode:
        os.close(found)
        return None
    try:
        return SharedSegment(found)
    except (OSError, ValueError) as error:
        raise EngineError(f"the workers' shared weights can't be mapped: {error}") from error


def started(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks since boot; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything; the start is the twentieth field behind it.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(fields[18])
