"""How fast host memory is pinned and copied from, by the size of its pages and where they lie.

A worker pins its host memory when it starts and when that grows. A line for each kind: huge pages that the
kernel keeps (``vm.nr_hugepages``), huge pages where the kernel gives them to shared memory, ordinary ones;
each as it comes, and from all memory nodes in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import psutil

from mainspring.experiments.gpu_check.copies import DeviceCopy
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, not_run, told
from mainspring.worker.config import MIB
from mainspring.worker.engines.cuda.driver import Driver, open_driver
from mainspring.worker.engines.cuda.numa import interleave, memory_nodes

COPIES = 10
ROOM = 2.0
"""What the host has to have available, as a multiple of what is pinned at a time."""


class Kind(NamedTuple):
    """A kind of shared memory."""

    name: str
    flags: int = 0
    """Of memfd_create."""
    advice: int = mmap.MADV_NOHUGEPAGE


KINDS = (
    Kind("huge pages that the kernel keeps", os.MFD_HUGETLB | os.MFD_HUGE_2MB, mmap.MADV_NORMAL),
    Kind("huge pages where the kernel gives them", advice=mmap.MADV_HUGEPAGE),
    Kind("ordinary pages"),
)


def check_pinning(settings: Settings) -> Iterator[Verdict]:
    """Pin as much of each kind, and copy from it."""
    number, size = settings.config().cuda_device, settings.pinned_mib * MIB
    if number is None:
        yield not_run("pinning host memory", "only a GPU's driver pins memory")
        return
    available = psutil.virtual_memory().available
    if available < ROOM * size:
        reason = f"the host has {available / 1e9:.1f} GB to spare, and {ROOM * size / 1e9:.1f} are wanted"
        yield not_run("pinning host memory", reason)
        return
    driver = open_driver(number)
    driver.attach()
    target = driver.allocate(size)
    try:
        for kind in KINDS:
            for spread in (False, True):
                yield pin(driver, target, kind, size, spread)
    finally:
        driver.free(target)
        driver.close()


def pin(driver: Driver, target: int, kind: Kind, size: int, spread: bool) -> Verdict:
    """Tell how fast memory that nobody has touched is pinned, and the device copies from it."""
    what = f"pinning {size // MIB} MiB, {kind.name}" + (", from all nodes in turn" if spread else "")
    if spread and len(memory_nodes()) < 2:
        return not_run(what, "the machine has one memory node")
    try:
        with memory_of(kind, size) as address:
            reason = interleave(address, size) if spread else ""
            begin_ns = time.monotonic_ns()
            driver.register_host(address, size)
            pinned_ns = time.monotonic_ns() - begin_ns
            copy = DeviceCopy(driver, target, address, size)
            try:
                copied_ns = float(np.median([copy.copy() for _ in range(COPIES)]))
            finally:
                driver.unregister_host(address)
    except (OSError, ValueError) as error:
        remedy = "; vm.nr_hugepages says how many it keeps" if kind.flags else ""
        return not_run(what, f"{error.args[-1]}{remedy}")
    return told(what, f"{size / pinned_ns:.2f} GB/s", reason or f"copied from at {size / copied_ns:.2f} GB/s")


@contextlib.contextmanager
def memory_of(kind: Kind, size: int) -> Iterator[int]:
    """Yield the address of new memory of a kind; raise OSError or ValueError if there is none."""
    file = os.memfd_create("mainspring-pinning", os.MFD_CLOEXEC | kind.flags)
    try:
        os.ftruncate(file, size)
        with mmap.mmap(file, size, flags=mmap.MAP_SHARED) as mapping:
            with contextlib.suppress(OSError):
                mapping.madvise(kind.advice)
            begin = ctypes.c_char.from_buffer(mapping)
            try:
                yield ctypes.addressof(begin)
            finally:
                # A mapping that something points into can't be closed.
                del begin
    finally:
        os.close(file)
