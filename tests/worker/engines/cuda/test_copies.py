"""INPUT, OUTPUT and LOAD copy beside EXEC, each waiting for what it needs and for nothing else."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from mainspring.experiments.gpu_check.rehearsal.driver import BYTES_PER_NS, LAUNCH_NS, FakeDriver
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import Reservation, Slot, SlotLayout
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.copies import EVENTS, IN_FLIGHT, IoCopies, Loader, chunks
from mainspring.worker.engines.cuda.driver import Copy
from mainspring.worker.engines.cuda.memory import MIB, DeviceMemory, Wanted, count_pages

SIZE = 1 << 16
LAYOUT = SlotLayout((0, 256), (512,), 1024)


class Bench:
    """Two IO memories, the copies between them, and a stream for EXEC."""

    def __init__(self) -> None:
        self.driver = FakeDriver(kernels={"double": Kernel(self.double)})
        self.driver.attach()
        self.host_address = self.driver.allocate_host(SIZE)
        self.device_address = self.driver.allocate(SIZE)
        self.host = bytes_at(self.host_address)
        self.device = bytes_at(self.device_address)
        self.copies = IoCopies(self.driver, self.host_address, self.device_address)
        self.exec = self.driver.stream()
        self.ended = self.driver.event()
        module = self.driver.load_module(b"")
        self.function = self.driver.function(module, "double", 0)

    def double(self, slot: int) -> None:
        """What EXEC computes: each output byte is twice the input's."""
        start = slot - self.device_address
        self.device[start + 512 : start + 1024] = self.device[start : start + 512] * 2

    def execute(self, io: Reservation) -> None:
        self.copies.await_inputs(io, self.exec)
        slot = ctypes.c_uint64(self.copies.address(io))
        pointer = ctypes.c_uint64(ctypes.addressof(slot))
        parameters = ctypes.addressof(pointer)
        self.driver.launch(self.function, (1, 1, 1), (1, 1, 1), 0, parameters, self.exec)
        self.driver.record(self.ended, self.exec)
        self.copies.begin_outputs(io, self.ended)


def bytes_at(address: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * SIZE).from_address(address))


def place(offset: int) -> Reservation:
    return Reservation(Slot(offset, LAYOUT.size), LAYOUT)


def test_outputs_are_computed_from_the_inputs_that_were_sent() -> None:
    bench = Bench()
    for offset, value in ((2048, 3), (8192, 5)):
        io = place(offset)
        bench.host[offset : offset + 512] = value
        bench.copies.send(io, 0, 256)
        bench.copies.send(io, 256, 256)
        bench.execute(io)
        assert bench.copies.receive(io) == ""
        assert set(bench.host[offset + 512 : offset + 1024]) == {2 * value}


def test_inputs_that_nobody_sent_are_sent_by_exec() -> None:
    bench = Bench()
    bench.host[:512] = 7
    bench.execute(place(0))
    bench.copies.receive(place(0))
    assert set(bench.host[512:1024]) == {14}


def test_exec_waits_for_its_own_inputs_and_not_for_later_ones() -> None:
    bench = Bench()
    first, second = place(0), place(4096)
    bench.copies.send(first, 0, 512)
    bench.copies.send(second, 0, 512)
    bench.execute(first)
    bench.copies.receive(first)
    (kernel,) = bench.driver.find("kernel")
    sent = bench.driver.find("copy TO_DEVICE")
    assert kernel.begin_ns == sent[0].end_ns


def test_an_output_comes_back_while_the_next_exec_runs() -> None:
    bench = Bench()
    for offset in (0, 4096):
        bench.copies.send(place(offset), 0, 512)
    bench.execute(place(0))
    bench.execute(place(4096))
    assert bench.copies.receive(place(0)) == ""
    bench.driver.run_all()
    first, second = bench.driver.find("kernel")
    came = bench.driver.find("copy TO_HOST")
    assert second.begin_ns == first.end_ns
    assert came[0].begin_ns == first.end_ns, "OUTPUT waited for the next EXEC"


def test_events_that_were_used_again_are_late_but_never_early() -> None:
    bench = Bench()
    slots = [place(index * 64 % (SIZE - 1024)) for index in range(EVENTS + 7)]
    oldest = place(SIZE - 1024)
    bench.host[SIZE - 1024 : SIZE - 512] = 9
    bench.copies.send(oldest, 0, 512)
    for io in slots:
        bench.copies.send(io, 0, 8)
    bench.execute(oldest)
    bench.copies.receive(oldest)
    assert set(bench.host[SIZE - 512 :]) == {18}


def test_nothing_is_allocated_for_an_inference() -> None:
    bench = Bench()
    before = list(bench.driver.allocations)
    for _ in range(10):
        bench.copies.send(place(0), 0, 512)
        bench.execute(place(0))
        bench.copies.receive(place(0))
    assert bench.driver.allocations == before


def test_a_failed_input_is_raised_by_the_exec_of_its_own_batch_once() -> None:
    bench = Bench()
    first, second = place(0), place(4096)
    bench.copies.send(first, 0, 256)
    bench.driver.fails["copy"] = RuntimeError("an illegal memory access was encountered")
    bench.copies.send(first, 256, 128)
    bench.driver.fails.clear()
    bench.copies.send(first, 384, 128)
    bench.copies.send(second, 0, 512)
    bench.execute(second)
    assert bench.copies.receive(second) == ""
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bench.execute(first)
    bench.execute(first)
    assert bench.copies.receive(first) == ""


def test_a_failed_input_whose_batch_was_not_executed_is_not_the_next_batchs() -> None:
    bench = Bench()
    bench.driver.fails["copy"] = RuntimeError("bus error")
    bench.copies.send(place(0), 0, 512)
    bench.driver.fails.clear()
    following = place(0)
    bench.copies.send(following, 0, 512)
    bench.execute(following)
    assert bench.copies.receive(following) == ""


def test_a_failed_output_is_told() -> None:
    bench = Bench()
    bench.execute(place(0))
    bench.driver.fails["synchronize"] = RuntimeError("unspecified launch failure")
    assert "unspecified launch failure" in bench.copies.receive(place(0))
    assert bench.copies.receive(place(0)) == "", "told once"


def test_a_slot_without_inputs_or_outputs_is_no_case_of_its_own() -> None:
    bench = Bench()
    for layout in (SlotLayout((), (0,), 64), SlotLayout((0,), (), 64)):
        io = Reservation(Slot(0, 64), layout)
        bench.copies.await_inputs(io, bench.exec)
        bench.driver.record(bench.ended, bench.exec)
        bench.copies.begin_outputs(io, bench.ended)
        assert bench.copies.receive(io) == ""
    kinds = [work.what for work in bench.driver.find("copy")]
    assert kinds == [f"copy {Copy.TO_HOST.name}", f"copy {Copy.TO_DEVICE.name}"]


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


@pytest.mark.parametrize("steps", [3, 30])
def test_what_a_load_does_meanwhile_leaves_the_bus_busy(steps: int) -> None:
    driver = fake()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, pages=2))
    source = driver.allocate_host(2 * PAGE_BYTES)
    loader = Loader(driver, memory, CHUNK)
    taken: list[int] = []

    def meanwhile() -> Iterator[None]:
        for step in range(steps):
            driver.now_ns += CHUNK // BYTES_PER_NS // 2
            taken.append(step)
            yield

    loader.copy(source, 2 * PAGE_BYTES, (0, 1), meanwhile())
    assert taken == list(range(steps))
    for piece, following in itertools.pairwise(driver.find("copy TO_DEVICE")):
        assert following.begin_ns == piece.end_ns, "the bus was idle"


@pytest.mark.parametrize("failing", ["copy", "synchronize", "meanwhile"])
def test_a_load_that_fails_leaves_no_copy_under_way(failing: str) -> None:
    driver = fake()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, pages=2))
    source = driver.allocate_host(2 * PAGE_BYTES)
    loader = Loader(driver, memory, CHUNK)
    call = getattr(driver, failing, None)

    def fail(*given: object) -> None:
        setattr(driver, failing, call)
        raise RuntimeError("bus error")

    def meanwhile() -> Iterator[None]:
        yield
        if call is None:
            fail()
        setattr(driver, failing, fail)
        yield

    with pytest.raises(RuntimeError, match="bus error"):
        loader.copy(source, 2 * PAGE_BYTES, (0, 1), meanwhile())
    given = driver.calls.count("copy")
    assert given >= IN_FLIGHT
    assert len(driver.find("copy TO_DEVICE")) == given, "pages would be overwritten after they are another's"


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
