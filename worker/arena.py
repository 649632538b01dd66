"""Memory that is allocated before the first request: aligned, touched, on huge pages where there are any."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from mainspring.worker.engine import Bytes

HUGE_PAGE_BYTES = 2 * 1024 * 1024


def allocate(size: int) -> Bytes:
    """Return ``size`` zero bytes, 2 MiB-aligned and touched; raise `MemoryError` if there are not enough."""
    try:
        mapping = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        wanted = f"{size / 2**20:.0f} MiB"
        raise MemoryError(f"can't allocate {wanted}: {error.strerror}; use fewer pages") from error
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    memory = whole[start : start + size]
    memory[:: mmap.PAGESIZE] = 0
    return memory
