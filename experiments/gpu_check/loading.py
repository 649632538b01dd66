"""LOAD of the main model, from its begin to its end, against the plain copy of as many bytes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import psutil

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Ints
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_least, not_run, told
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import MIB
from mainspring.worker.engines.artifacts import allocate
from mainspring.worker.engines.cuda.driver import Copy, Driver, open_driver
from mainspring.worker.engines.cuda.numa import interleave, memory_nodes
from mainspring.worker.engines.cuda.shared_memory import make_segment
from mainspring.worker.realtime import Rights

COPIES = 10
ROOM = 2.0


class Kind(NamedTuple):
    """A kind of shared memory."""

    name: str
    flags: int = 0
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


class PlainCopy(Protocol):
    """One copy of a fixed size, again and again."""

    def copy(self) -> int:
        """Copy; return the ns that it took."""


class HostCopy:
    """Copy from memory to memory, where the processor is the device."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._source, self._target = allocate(size), allocate(size)
        self._source[:] = np.random.default_rng(0).integers(0, 256, size, np.uint8)

    def copy(self) -> int:
        """See `PlainCopy`."""
        begin_ns = time.monotonic_ns()
        ctypes.memmove(self._target.ctypes.data, self._source.ctypes.data, self._size)
        return time.monotonic_ns() - begin_ns


class DeviceCopy:
    """Copy between pinned memory and memory of a GPU in one piece, timed by the GPU."""

    def __init__(self, driver: Driver, target: int, source: int, size: int) -> None:
        self._driver = driver
        self._target, self._source, self._size = target, source, size
        self._stream = driver.stream()
        self._begin, self._end = driver.event(timed=True), driver.event(timed=True)

    def copy(self) -> int:
        """See `PlainCopy`."""
        driver = self._driver
        driver.attach()
        driver.record(self._begin, self._stream)
        driver.copy(self._target, self._source, self._size, Copy.TO_DEVICE, self._stream)
        driver.record(self._end, self._stream)
        driver.synchronize(self._end)
        return driver.elapsed_ns(self._begin, self._end)


@contextlib.contextmanager
def plain_copies(settings: Settings, size: int) -> Iterator[dict[str, PlainCopy]]:
    """Yield the copies for the settings' device by name; the first is what LOAD is judged by.

    The other one explains a slow LOAD: it is from memory like that which workers share, where LOAD copies
    from.
    """
    number = settings.config().cuda_device
    if number is None:
        yield {"plain copy": HostCopy(size)}
        return
    driver = open_driver(number)
    driver.attach()
    with contextlib.ExitStack() as stack:
        stack.callback(driver.close)
        target, source, segment = driver.allocate(size), driver.allocate_host(size), make_segment(size)
        stack.callback(driver.free, target)
        stack.callback(driver.free_host, source)
        stack.callback(segment.close)
        driver.register_host(segment.address, segment.size)
        stack.callback(driver.unregister_host, segment.address)
        yield {
            "plain copy": DeviceCopy(driver, target, source, size),
            "plain copy from a shared segment": DeviceCopy(driver, target, segment.address, size),
        }


SHARE = 0.95


def check_loading(settings: Settings) -> list[Verdict]:
    """Measure LOAD and plain copies in turns, in a thread like a worker's LOAD.

    That matters: chunks are sent one after the other, and in an interpreter that lets another thread go on
    for its usual 5 ms the copy would wait for it.
    """
    spec = Store(settings.store(settings.engine)).manifest(settings.main).spec()
    rights = Rights(settings.realtime)
    with (
        plain_copies(settings, spec.weights_bytes) as plain,
        device_for([spec], settings.config()) as device,
    ):
        device.prepare(spec)
        with rights.claimed_process(), ThreadPoolExecutor(1, initializer=rights.claim_load) as thread:
            loads = thread.submit(in_turns, device, spec, plain, settings.loads).result()
    return verdicts(spec, *loads)


def in_turns(
    device: LoneDevice, spec: ModelSpec, plain: dict[str, PlainCopy], rounds: int
) -> tuple[Ints, Ints, dict[str, Ints]]:
    """Return durations in ns of LOADs of a prepared model, of their copies, and of plain copies in turns.

    A LOAD's duration is the host's, from the call to its return, which is what the scheduler learns.
    """
    loads, own_copies = [], []
    copies: dict[str, list[int]] = {name: [] for name in plain}
    for number in range(rounds + 1):
        for name, each in plain.items():
            copies[name].append(each.copy())
        begin_ns = time.monotonic_ns()
        own_copies.append(device.load(spec, first_page=spec.pages * (number % 2)))
        loads.append(time.monotonic_ns() - begin_ns)
    # The first of each touches what nobody had touched.
    later = {name: np.array(durations[1:], np.int64) for name, durations in copies.items()}
    return np.array(loads[1:], np.int64), np.array(own_copies[1:], np.int64), later


def verdicts(spec: ModelSpec, loads: Ints, own_copies: Ints, copies: dict[str, Ints]) -> list[Verdict]:
    """Judge the median of LOADs by that of the first plain copies."""
    first = next(iter(copies.values()))
    rows = {"LOAD": loads, "of which its copy": own_copies, **copies}
    found = [
        at_least(
            f"LOAD {spec.name}, begin to end: share of the bandwidth to the device",
            float(np.median(first) / np.median(loads)),
            SHARE,
            note=f"{spec.weights_bytes / 1e6:.1f} MB in {spec.pages} pages; medians of {len(loads)} in turns",
        )
    ]
    for name, durations in rows.items():
        median_ns = float(np.median(durations))
        speed = f"{spec.weights_bytes / median_ns:.2f} GB/s"
        found.append(told(f"  {name}", f"{median_ns / 1e6:.3f} ms", speed))
    return found
