"""All of a device's memory except a reserve, allocated once and divided (Clockwork, section 5.2).

The workspace is for intermediate results of kernels; the IO cache for inputs before and outputs after EXEC;
pages of 16 MiB for weights. Afterwards nothing on the serving path allocates memory of the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.engine import Bytes, EngineError
from mainspring.worker.engines.cuda.driver import Driver

MIB = 1 << 20

SESSION_BYTES = 40 * MIB
"""Memory that a session of ONNX Runtime allocates for its handles, assumed: cuBLAS's 32 MiB on Hopper, and
cuDNN's.

``gpu-check sessions`` measures it.
"""


class Wanted(NamedTuple):
    """The division of a device's memory that is asked for."""

    workspace_bytes: int
    io_bytes: int
    reserve_bytes: int
    """Left for the driver, libraries, the code of kernels, and graphs."""
    pages: int = 0
    """Pages for weights; 0 for all that fit."""
    elsewhere_bytes: int = 0
    """The most that a library allocates by itself."""


def count_pages(free_bytes: int, wanted: Wanted) -> int:
    """Return how many pages there will be; raise `EngineError`, which says what to change, if too few fit."""
    others = wanted.workspace_bytes + wanted.io_bytes + wanted.reserve_bytes + wanted.elsewhere_bytes
    fit = max(0, free_bytes - others) // PAGE_BYTES
    if fit < max(1, wanted.pages):
        raise EngineError(
            f"the GPU has {free_bytes // MIB} MiB free: beside workspace, IO cache and reserve "
            f"({others // MIB} MiB) that is room for {fit} pages of 16 MiB, not for {max(1, wanted.pages)}; "
            "end what else uses the GPU (nvidia-smi names it), or lower pages, workspace_bytes, io_bytes or "
            "reserve_bytes"
        )
    return wanted.pages or fit


class DeviceMemory:
    """A device's memory, divided into workspace, IO cache and pages."""

    def __init__(self, driver: Driver, wanted: Wanted) -> None:
        """Allocate the memory; raise `EngineError` if there is too little."""
        self.pages = count_pages(driver.memory().free_bytes, wanted)
        self.workspace_bytes = wanted.workspace_bytes
        self._driver = driver
        self._taken: list[int] = []
        try:
            self.workspace = self._take(wanted.workspace_bytes)
            self.io = self._take(wanted.io_bytes)
            self.first_page = self._take(self.pages * PAGE_BYTES)
        except BaseException:
            self.close()
            raise

    def page(self, number: int) -> int:
        """Return the address of a page."""
        return self.first_page + number * PAGE_BYTES

    def weight(self, pages: Sequence[int], offset: int) -> int:
        """Return the address of the byte at ``offset`` of a weights file that was loaded to these pages."""
        return self.page(pages[offset // PAGE_BYTES]) + offset % PAGE_BYTES

    def close(self) -> None:
        """Free everything."""
        while self._taken:
            self._driver.free(self._taken.pop())

    def _take(self, size: int) -> int:
        address = self._driver.allocate(size)
        self._taken.append(address)
        return address


def pinned(driver: Driver, size: int) -> tuple[int, Bytes]:
    """Return the address of pinned host memory, and the memory, all zeros."""
    address = driver.allocate_host(size)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    memory[:] = 0
    return address, memory
