"""Inputs that a GPU copies from a gateway's memory: in pieces, in order, never after the place is free."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.transport.shared_memory import Bytes
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Reservation, Slot, SlotLayout
from mainspring.worker.engine import SharesInputs
from mainspring.worker.engines.cuda import shared_inputs
from mainspring.worker.engines.cuda.copies import IoCopies
from mainspring.worker.engines.cuda.driver import Copy
from mainspring.worker.engines.cuda.shared_inputs import PIECE_BYTES, PinnedInputs

IO_BYTES = 1 << 16
LAYOUT = SlotLayout((0,), (8192,), 16384)
IO = Reservation(Slot(4096, LAYOUT.size), LAYOUT)


class Recording(FakeDriver):
    """A GPU that keeps from where each copy to it was told."""

    def __init__(self) -> None:
        super().__init__(256 * MIB)
        self.sources: list[tuple[int, int]] = []

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        if kind is Copy.TO_DEVICE:
            self.sources.append((source, size))
        super().copy(target, source, size, kind, stream)


class Bench:
    """Both IO memories of a GPU, and memory that somebody else has written."""

    def __init__(self, size: int) -> None:
        self.driver = Recording()
        self.driver.attach()
        self.device_address = self.driver.allocate(IO_BYTES)
        self.copies = IoCopies(self.driver, self.driver.allocate_host(IO_BYTES), self.device_address)
        self.memory: Bytes = np.arange(size, dtype=np.uint64).astype(np.uint8)
        self.shared = self.copies.share(self.memory)

    def on_device(self, start: int, size: int) -> bytes:
        self.driver.run_all()
        return ctypes.string_at(self.device_address + IO.slot.offset + start, size)


def advanced(shared: PinnedInputs) -> int:
    """How many further pieces there are."""
    steps = 1
    while shared.advance():
        steps += 1
    return steps


def test_memory_is_pinned_piece_by_piece_and_released_so() -> None:
    bench = Bench(2 * PIECE_BYTES + 100)
    assert isinstance(bench.copies, SharesInputs)
    assert not bench.shared.covers(0, 1)
    assert bench.shared.advance()
    assert bench.shared.covers(0, PIECE_BYTES)
    assert not bench.shared.covers(1, PIECE_BYTES)
    assert advanced(bench.shared) == 2
    assert not bench.shared.advance()
    assert bench.driver.calls.count("register_host") == 3
    assert bench.shared.covers(2 * PIECE_BYTES, 100)
    bench.shared.close()
    assert not bench.shared.covers(0, 1)
    assert advanced(bench.shared) == 3
    assert bench.driver.leaks["pinned"] == 1, "only IO memory"
    assert not bench.shared.advances


def test_inputs_go_to_the_device_from_where_they_are() -> None:
    bench = Bench(2 * PIECE_BYTES)
    advanced(bench.shared)
    bench.shared.send(IO, 64, 1000, 300)
    assert bench.driver.sources == [(bench.memory.ctypes.data + 1000, 300)]
    assert bench.on_device(64, 300) == bench.memory[1000:1300].tobytes()
    assert bench.copies.receive(IO) == ""


def test_no_copy_crosses_a_border_of_pieces() -> None:
    bench = Bench(2 * PIECE_BYTES)
    advanced(bench.shared)
    first = PIECE_BYTES - 100
    bench.shared.send(IO, 0, first, 300)
    assert bench.driver.sources == [
        (bench.memory.ctypes.data + first, 100),
        (bench.memory.ctypes.data + PIECE_BYTES, 200),
    ]
    assert bench.on_device(0, 300) == bench.memory[first : first + 300].tobytes()


def test_a_copy_has_ended_once_the_device_says_so_and_not_before() -> None:
    bench = Bench(4096)
    advanced(bench.shared)
    assert bench.shared.ended() == 0
    for start in (0, 1000, 2000):
        bench.shared.send(IO, start, start, 1000)
    assert (bench.shared.begun, bench.shared.ended()) == (3, 0)
    bench.driver.run_all()
    assert bench.shared.ended() == 3


def test_exec_waits_for_what_was_copied_from_there() -> None:
    bench = Bench(4096)
    advanced(bench.shared)
    stream = bench.driver.stream()
    bench.shared.send(IO, 0, 0, 4096)
    bench.copies.await_inputs(IO, stream)
    done = bench.driver.event()
    bench.driver.record(done, stream)
    bench.driver.synchronize(done)
    assert bench.shared.ended() == 1
    assert len(bench.driver.sources) == 1, "IO memory was sent, too"


def test_a_copy_that_fails_is_its_batchs_to_raise_and_holds_no_place() -> None:
    bench = Bench(4096)
    advanced(bench.shared)
    bench.driver.fails["copy"] = RuntimeError("an illegal memory access was encountered")
    bench.shared.send(IO, 0, 0, 100)
    assert (bench.shared.begun, bench.shared.ended()) == (1, 1)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bench.copies.await_inputs(IO, bench.driver.stream())


def test_closing_waits_for_what_is_under_way() -> None:
    bench = Bench(4096)
    advanced(bench.shared)
    bench.shared.send(IO, 0, 0, 4096)
    bench.shared.close()
    assert bench.shared.ended() == 1
    assert bench.driver.find("copy TO_DEVICE"), "the memory was left while the device read it"


def test_a_device_that_can_not_be_asked_keeps_the_place() -> None:
    bench = Bench(4096)
    advanced(bench.shared)
    bench.shared.send(IO, 0, 0, 100)
    bench.driver.fails["happened"] = RuntimeError("unspecified launch failure")
    assert bench.shared.ended() == 0


@pytest.mark.parametrize("refuse", ["driver", "registration", "room"])
def test_what_can_not_be_pinned_is_left_to_the_copy_and_told(
    refuse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(2 * PIECE_BYTES)
    assert bench.shared.advance()
    expected = "operation not supported"
    if refuse == "driver":
        bench.driver.pins_read_only = False
    elif refuse == "registration":
        bench.driver.fails["register_host"] = RuntimeError(expected := "out of memory")
    else:
        monkeypatch.setattr(shared_inputs, "may_be_pinned", lambda: 1 << 20)
        expected = "room to pin 1 MiB"
    assert not bench.shared.advance()
    bench.driver.fails.clear()
    assert not bench.shared.advance(), "it is not tried again and again"
    assert bench.shared.covers(0, PIECE_BYTES)
    assert not bench.shared.covers(PIECE_BYTES, 1)
    (note,) = bench.copies.notes
    assert expected in note
    assert "16 MiB" in note
    bench.shared.close()
    assert bench.copies.notes == ()


def test_all_is_released_with_the_engine() -> None:
    bench = Bench(2 * PIECE_BYTES)
    advanced(bench.shared)
    bench.shared.send(IO, 0, 0, 100)
    bench.copies.close()
    assert bench.driver.leaks["pinned"] == 1, "only IO memory"
