"""Device memory is divided as configured, and LOAD's chunks leave INPUT its turn."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.cuda.driver import Copy
from mainspring.worker.cuda.loading import IN_FLIGHT, Loader, chunks
from mainspring.worker.cuda.memory import MIB, DeviceMemory, Wanted, count_pages
from mainspring.worker.engine import EngineError
from tests.worker.cuda.fake_driver import BYTES_PER_NS, LAUNCH_NS, FakeDriver

CHUNK = 4 * MIB


def fake() -> FakeDriver:
    driver = FakeDriver()
    driver.attach()
    return driver


def device_bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def test_pages_are_what_workspace_cache_and_reserve_leave() -> None:
    wanted = Wanted(workspace_bytes=512 * MIB, io_bytes=256 * MIB, reserve_bytes=1024 * MIB)
    assert count_pages(143_000 * MIB, wanted) == (143_000 - 1792) // 16
    assert count_pages(143_000 * MIB, wanted._replace(pages=64)) == 64
    assert count_pages(2048 * MIB, wanted._replace(elsewhere_bytes=240 * MIB)) == 1


@pytest.mark.parametrize(("free_mib", "pages"), [(1000, 0), (1807, 0), (3000, 77)])
def test_too_little_memory_is_refused_with_what_to_change(free_mib: int, pages: int) -> None:
    wanted = Wanted(512 * MIB, 256 * MIB, 1024 * MIB, pages)
    with pytest.raises(EngineError, match=rf"{free_mib} MiB free.*room for .* pages.*lower pages"):
        count_pages(free_mib * MIB, wanted)


def test_all_memory_is_taken_at_once_and_given_back() -> None:
    driver = fake()
    memory = DeviceMemory(driver, Wanted(8 * MIB, 8 * MIB, 100 * MIB))
    assert memory.pages == (1024 - 116) // 16
    assert driver.memory().free_bytes < 116 * MIB
    assert memory.page(3) - memory.page(0) == 3 * PAGE_BYTES
    assert memory.weight((5, 2), PAGE_BYTES + 64) == memory.page(2) + 64
    memory.close()
    assert not driver.leaks


def test_memory_that_was_taken_is_given_back_if_the_rest_can_not_be() -> None:
    driver = fake()
    allocate, calls = driver.allocate, iter(range(3))

    def allocate_two(size: int) -> int:
        if next(calls) == 2:
            raise RuntimeError("out of memory")
        return allocate(size)

    driver.allocate = allocate_two  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        DeviceMemory(driver, Wanted(MIB, MIB, MIB))
    assert not driver.leaks


def test_chunks_cover_the_file_and_cross_no_page_border() -> None:
    size = 2 * PAGE_BYTES + 5 * MIB + 100
    pages = [1 << 40, 5 << 40, 3 << 40]
    found = list(chunks(1000, size, pages, 6 * MIB))
    assert sum(chunk.size for chunk in found) == size
    position = 0
    for chunk in found:
        assert chunk.source == 1000 + position
        assert chunk.target == pages[position // PAGE_BYTES] + position % PAGE_BYTES
        assert chunk.size <= 6 * MIB
        assert position // PAGE_BYTES == (position + chunk.size - 1) // PAGE_BYTES
        position += chunk.size


def test_load_brings_the_bytes_to_the_pages_and_keeps_the_bus_busy() -> None:
    driver = fake()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, pages=5))
    size = 2 * PAGE_BYTES + 1000
    source = driver.allocate_host(size)
    weights = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    ctypes.memmove(source, weights.ctypes.data, size)
    loader = Loader(driver, memory, CHUNK)
    before = list(driver.allocations)
    duration_ns = loader.copy(source, size, (4, 0, 2))
    assert driver.allocations == before, "LOAD allocated"
    assert device_bytes(memory.page(4), PAGE_BYTES) == weights[:PAGE_BYTES].tobytes()
    assert device_bytes(memory.page(0), PAGE_BYTES) == weights[PAGE_BYTES : 2 * PAGE_BYTES].tobytes()
    assert device_bytes(memory.page(2), 1000) == weights[2 * PAGE_BYTES :].tobytes()
    pieces = driver.find("copy TO_DEVICE")
    assert duration_ns == sum(LAUNCH_NS + piece.size // BYTES_PER_NS for piece in pieces)
    for piece, following in itertools.pairwise(pieces):
        assert following.begin_ns == piece.end_ns, "the bus was idle"


def test_an_input_waits_for_the_chunks_in_flight_and_not_for_the_model() -> None:
    driver = fake()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, pages=5))
    size = 5 * PAGE_BYTES
    source, row = driver.allocate_host(size), driver.allocate_host(4096)
    loader = Loader(driver, memory, CHUNK)
    inputs = driver.stream(urgent=True)
    told: list[int] = []

    def send_an_input(kind: Copy) -> None:
        """In the middle of the LOAD, between two of its chunks, as the network thread would."""
        if kind is Copy.TO_DEVICE and driver.calls.count("copy") == 7:
            driver.before_copy = lambda _: None
            told.append(driver.now_ns)
            driver.copy(memory.io, row, 4096, Copy.TO_DEVICE, inputs)

    driver.before_copy = send_an_input
    loader.copy(source, size, range(5))
    (copied,) = [work for work in driver.find("copy TO_DEVICE") if work.size == 4096]
    chunk_ns = LAUNCH_NS + CHUNK // BYTES_PER_NS
    assert copied.begin_ns - told[0] <= IN_FLIGHT * chunk_ns
    assert copied.end_ns < driver.now_ns - 10 * chunk_ns, "the input waited for the whole model"
