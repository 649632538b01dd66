"""Inputs that the device copies from memory that a gateway writes, as a worker of its host has it mapped.

NVIDIA's driver has to pin memory that the worker may only read, which it may refuse; then a worker copies
inputs to its own pinned memory first, and so does the line beside it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, not_run, told
from mainspring.transport.shared_memory import OwnMemory, map_to_read
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Reservation, Slot, SlotLayout
from mainspring.worker.engines.cuda.copies import IoCopies
from mainspring.worker.engines.cuda.driver import Copy, Driver, open_driver
from mainspring.worker.engines.cuda.memory import pinned
from mainspring.worker.engines.cuda.shared_inputs import PIECE_BYTES, PinnedInputs

INPUT_BYTES = 602_112
"""An image of 224 x 224 in 32-bit floats."""
SHARED_BYTES = 2 * PIECE_BYTES
ROUNDS = 100
IO = Reservation(Slot(0, INPUT_BYTES), SlotLayout((0,), (), INPUT_BYTES))


def check_shared(settings: Settings) -> Iterator[Verdict]:
    """Pin memory that is mapped to read, have the device copy inputs from it, and compare what came there."""
    number = settings.config().cuda_device
    if number is None:
        yield not_run("inputs from a gateway's memory", "only a GPU copies them from there")
        return
    driver = open_driver(number)
    driver.attach()
    own = OwnMemory("gpu-check-inputs", SHARED_BYTES)
    own.bytes[:] = np.random.default_rng(0).integers(0, 256, own.size, np.uint8)
    device = driver.allocate(INPUT_BYTES)
    host, io = pinned(driver, INPUT_BYTES)
    copies = IoCopies(driver, host, device)
    try:
        mapped = map_to_read(os.dup(own.descriptor), own.size)
        shared = copies.share(mapped)
        yield from pin(shared, own.size)
        if not shared.refused:
            yield came(driver, copies, shared, own, (host, io, device))
            yield from in_turns(driver, copies, shared, own, io)
    finally:
        copies.close()
        driver.free_host(host)
        driver.free(device)
        driver.close()
        own.close()


def pin(shared: PinnedInputs, size: int) -> Iterator[Verdict]:
    """Pin all of it; tell how long a piece took, or why it can't be."""
    what = f"pinning {size // MIB} MiB that another process writes"
    durations = []
    left = True
    while left:
        begin_ns = time.monotonic_ns()
        left = shared.advance()
        durations.append(time.monotonic_ns() - begin_ns)
    if shared.refused:
        yield not_run(what, f"{shared.refused}; a worker copies inputs to pinned memory first")
        return
    piece = f"a piece of {PIECE_BYTES // MIB} MiB takes {max(durations) / 1e6:.2f} ms"
    yield told(what, f"{size / max(1, sum(durations)):.2f} GB/s", piece)


def came(
    driver: Driver, copies: IoCopies, shared: PinnedInputs, own: OwnMemory, io: tuple[int, np.ndarray, int]
) -> Verdict:
    """Copy an input across a border of pieces, and back; count the bytes that are not the writer's."""
    host, back, device = io
    offset = PIECE_BYTES - INPUT_BYTES // 2
    shared.send(IO, 0, offset, INPUT_BYTES)
    stream, done = driver.stream(), driver.event()
    copies.await_inputs(IO, stream)
    driver.copy(host, device, INPUT_BYTES, Copy.TO_HOST, stream)
    driver.record(done, stream)
    driver.synchronize(done)
    wrong = int(np.count_nonzero(back != own.bytes[offset : offset + INPUT_BYTES]))
    ended = shared.ended() == shared.begun
    return at_most(
        "inputs from a gateway's memory: bytes that are not its own",
        wrong if ended else INPUT_BYTES,
        0,
        note="" if ended else "the device does not say that its copy has ended",
    )


def in_turns(
    driver: Driver, copies: IoCopies, shared: PinnedInputs, own: OwnMemory, io: np.ndarray
) -> Iterator[Verdict]:
    """Tell what an input takes to the device from there, and by way of IO memory."""
    stream, done = driver.stream(), driver.event()

    def straight() -> None:
        shared.send(IO, 0, 0, INPUT_BYTES)

    def staged() -> None:
        ctypes.memmove(io.ctypes.data, own.bytes.ctypes.data, INPUT_BYTES)
        copies.send(IO, 0, INPUT_BYTES)

    def once(send: Callable[[], None]) -> tuple[int, int]:
        begin_ns = time.monotonic_ns()
        send()
        sent_ns = time.monotonic_ns()
        copies.await_inputs(IO, stream)
        driver.record(done, stream)
        driver.synchronize(done)
        return sent_ns - begin_ns, time.monotonic_ns() - begin_ns

    ways = {"from there": straight, "by way of IO memory": staged}
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, send in ways.items():
            found[name].append(once(send))
    for name, durations in found.items():
        of_thread, until_there = np.median(np.array(durations, np.float64), axis=0)
        yield told(
            f"  an input of {INPUT_BYTES // 1000} KB {name}",
            f"{until_there / 1e3:.0f} us",
            f"{of_thread / 1e3:.0f} us of the thread's",
        )
