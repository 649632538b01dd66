"""What LOAD is compared with: plain copies of as many bytes, from pinned host memory to the device."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from mainspring.experiments.gpu_check.settings import Settings
from mainspring.worker.engines.cuda.driver import Copy, Driver, open_driver
from mainspring.worker.engines.cuda.shared_memory import make_segment
from mainspring.worker.engines.memory import allocate


class PlainCopy(Protocol):
    """One copy of a fixed size, again and again."""

    def copy(self) -> int:
        """Copy; return the ns that it took."""


class HostCopy:
    """From memory to memory, where the processor is the device."""

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
    """Between pinned memory and memory of a GPU in one piece, timed by the GPU."""

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
