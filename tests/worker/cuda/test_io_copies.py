"""Inputs go and outputs come beside EXEC, each waiting for what it needs and for nothing else."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest

from mainspring.worker.core.jobs import Reservation, Slot, SlotLayout
from mainspring.worker.cuda.driver import Copy
from mainspring.worker.cuda.io_copies import EVENTS, IoCopies
from tests.worker.cuda.fake_driver import FakeDriver
from tests.worker.cuda.fake_work import Kernel

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


def test_a_failed_input_is_raised_by_exec_once() -> None:
    bench = Bench()
    bench.driver.fails["copy"] = RuntimeError("an illegal memory access was encountered")
    bench.copies.send(place(0), 0, 512)
    bench.driver.fails.clear()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bench.execute(place(0))
    bench.execute(place(0))
    assert bench.copies.receive(place(0)) == ""


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
