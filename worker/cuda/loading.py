"""LOAD's copy: weights from pinned host memory to pages, in chunks (Clockwork, section 5.2).

A device copies in one direction one thing at a time, in the order in which it was told. So LOAD never has
more than `IN_FLIGHT` chunks with it: an INPUT that comes meanwhile waits for those, not for a whole model.
Two keep the bus busy, because the next is there when one ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.cuda.driver import Copy, Driver
from mainspring.worker.cuda.memory import DeviceMemory

IN_FLIGHT = 2
"""Chunks that the device has been given and has not ended."""


class Chunk(NamedTuple):
    """A piece of a copy."""

    target: int
    source: int
    size: int


def chunks(source: int, size: int, pages: Sequence[int], chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the pieces of a weights file of ``size`` bytes; ``pages`` are addresses, in the file's order.

    No piece crosses a page border of the file, since pages that follow each other there need not on the
    device.
    """
    for position, page in enumerate(pages):
        begin = position * PAGE_BYTES
        for offset in range(0, min(PAGE_BYTES, size - begin), chunk_bytes):
            length = min(chunk_bytes, PAGE_BYTES - offset, size - begin - offset)
            yield Chunk(page + offset, source + begin + offset, length)


class Loader:
    """Copies weights, one model at a time; the LOAD thread calls it."""

    def __init__(self, driver: Driver, memory: DeviceMemory, chunk_bytes: int) -> None:
        self._driver = driver
        self._memory = memory
        self._chunk_bytes = chunk_bytes
        self._stream = driver.stream()
        # LOAD spins while it waits: an interrupt that comes late would leave the bus idle.
        self._done = [driver.event() for _ in range(IN_FLIGHT)]
        self._begin, self._end = driver.event(timed=True), driver.event(timed=True)

    def copy(self, source: int, size: int, pages: Sequence[int]) -> int:
        """Copy a weights file at the host's address ``source`` to pages by number; return the ns it took."""
        driver, stream = self._driver, self._stream
        driver.record(self._begin, stream)
        addresses = [self._memory.page(page) for page in pages]
        for number, chunk in enumerate(chunks(source, size, addresses, self._chunk_bytes)):
            done = self._done[number % IN_FLIGHT]
            if number >= IN_FLIGHT:
                driver.synchronize(done)
            driver.copy(chunk.target, chunk.source, chunk.size, Copy.TO_DEVICE, stream)
            driver.record(done, stream)
        driver.record(self._end, stream)
        driver.synchronize(self._end)
        return driver.elapsed_ns(self._begin, self._end)
