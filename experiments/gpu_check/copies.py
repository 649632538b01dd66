"""What LOAD is compared with: the plain copy of as many bytes, from pinned host memory to the device."""

from __future__ import annotations

import ctypes
import time
from typing import Protocol

import numpy as np

from mainspring.experiments.gpu_check.settings import Settings
from mainspring.worker.engines.cuda.driver import Copy, Driver, open_driver
from mainspring.worker.engines.memory import allocate


class PlainCopy(Protocol):
    """One copy of a fixed size, again and again."""

    def copy(self) -> int:
        """Copy; return the ns that it took."""

    def close(self) -> None:
        """Give the memory back."""


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

    def close(self) -> None:
        """Nothing is left behind."""


class DeviceCopy:
    """From pinned memory to a GPU in one piece, timed by the GPU."""

    def __init__(self, driver: Driver, size: int) -> None:
        driver.attach()
        self._driver = driver
        self._size = size
        self._source = driver.allocate_host(size)
        self._target = driver.allocate(size)
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

    def close(self) -> None:
        """See `PlainCopy`."""
        self._driver.free(self._target)
        self._driver.free_host(self._source)
        self._driver.close()


def plain_copy(settings: Settings, size: int) -> PlainCopy:
    """Return the copy for the settings' device."""
    number = settings.config().cuda_device
    return HostCopy(size) if number is None else DeviceCopy(open_driver(number), size)
