"""Time of an EXEC beside its kernels when one follows the other: begun after the end, and given ahead.

Measured twice: called as EXEC's thread calls the engine, and by a worker's core and threads, which decide and
report meanwhile. A worker's cluster is not there: nobody waits for a socket.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice
from mainspring.compiler.choosing.durations import Ints, quantile
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, failed, not_run, told
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.worker.batches import Outbox
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import align, slot_layout
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import OwnMemory, Queues
from mainspring.worker.executors import EXPIRY_NS, Executors
from mainspring.worker.realtime import Rights

GAP_US = 15.0
"""Most that may pass between the kernels of an EXEC that was given ahead and those before it. In between the
device waits for the event of its inputs and runs the kernel that writes the addresses, and nothing else."""
WAITING = 4
"""INFERs that a worker has at a time."""
WINDOW_NS = 600_000_000_000
NAME = "lone"
ENDING_S = 10.0


class Batches(NamedTuple):
    """Batches of one row, whose slots lie one behind the other."""

    action: Infer
    slots: tuple[Reservation, ...]


def of_gaps(device: LoneDevice, spec: ModelSpec, runs: int) -> list[Verdict]:
    """Run one batch of a resident model behind the other, in a thread like a worker's EXEC."""
    part_ns, whole_ns = of_calls(device, spec, runs)
    without = told(
        "EXEC back to back, batch 1: beside the device's part",
        f"{(whole_ns - part_ns) / 1e3:.1f} us",
        f"{part_ns / 1e6:.4f} of {whole_ns / 1e6:.4f} ms each",
    )
    what = "EXEC given ahead, batch 1: beside the device's part"
    if reason := why_not(device, spec):
        return [without, not_run(what, reason)]
    ahead_ns = of_calls_ahead(device, spec, runs)
    note = f"{ahead_ns / 1e6:.4f} ms each"
    return [without, at_most(what, (ahead_ns - part_ns) / 1e3, GAP_US, "us", note)]


def of_gaps_in_a_worker(device: LoneDevice, spec: ModelSpec, runs: int, rights: Rights) -> list[Verdict]:
    """Have a worker's core and threads run INFERs that queue up: the next one given afterwards, or ahead."""
    what = "EXEC back to back in a worker: median beside the device's part"
    if reason := why_not(device, spec):
        return [not_run(what, reason)]
    part_ns, _ = of_calls(device, spec, runs)
    counting = Counting(device.engine)
    gaps: list[Ints] = []
    for each in (Unhurried(device.engine), counting):
        # Its thread is a worker's network thread.
        with ThreadPoolExecutor(1, initializer=rights.claim_network) as network:
            results = network.submit(served, device, each, spec, runs, rights).result()
        bad = next((each for each in results if each.status is not Status.OK), None)
        if bad is not None:
            return [failed(what, f"{bad.status}: {bad.detail}")]
        gaps.append(np.diff(np.array([each.end_ns for each in results])) - round(part_ns))
    without, found = gaps
    return [
        at_most(
            what,
            float(np.median(found)) / 1e3,
            GAP_US,
            "us",
            f"99th percentile {quantile(found, 99) / 1e3:.1f} us, {counting.ahead} of {runs} given ahead; "
            f"without {np.median(without) / 1e3:.1f} and {quantile(without, 99) / 1e3:.1f} us",
        )
    ]


def why_not(device: LoneDevice, spec: ModelSpec) -> str:
    """Return why batches of a resident model can't be given ahead; nothing if they can."""
    action, slots = batches_of(device, spec, 2)
    if not isinstance(device.engine, Queues):
        return "the device is not given batches ahead"
    if not device.engine.takes_ahead(action):
        return f"batches of {spec.name} are not given ahead: they are no single launch"
    return "" if len(slots) == 2 else f"IO memory of {device.engine.io.size} bytes holds one batch"


def batches_of(device: LoneDevice, spec: ModelSpec, count: int) -> Batches:
    """Return at most this many slots: as many as there is IO memory for."""
    layout = slot_layout(spec, 1)
    size = align(layout.size)
    count = max(1, min(count, device.engine.io.size // size))
    action = Infer(1, NAME, spec.name, 1, (0,), (1,), (False,), 0, 0, 0, 0)
    return Batches(action, tuple(Reservation(Slot(index * size, size), layout) for index in range(count)))


def of_calls(device: LoneDevice, spec: ModelSpec, runs: int) -> tuple[float, float]:
    """Return how long one of ``runs`` batches takes the device, and as a whole, in ns."""
    run = device.infer(spec, 1)
    begin_ns = time.monotonic_ns()
    parts = [run() for _ in range(runs)]
    return float(np.mean(parts)), (time.monotonic_ns() - begin_ns) / runs


def of_calls_ahead(device: LoneDevice, spec: ModelSpec, runs: int) -> float:
    """Return how long one of ``runs`` batches takes in ns, each given while the one before computes."""
    engine, (action, slots) = device.engine, batches_of(device, spec, 2)
    assert isinstance(engine, Queues), "the caller asks `why_not` first"
    begin_ns = time.monotonic_ns()
    given = engine.give(action, slots[0])
    for turn in range(1, runs):
        following = engine.give(action, slots[turn % len(slots)])
        given.wait()
        given = following
    given.wait()
    return (time.monotonic_ns() - begin_ns) / runs


class Unhurried:
    """An engine that takes nothing ahead, and is otherwise another one."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def takes_ahead(self, action: Infer) -> bool:  # noqa: ARG002
        """See `mainspring.worker.engine.Queues`."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Counting(Unhurried):
    """An engine that counts the batches that it was given while it had one."""

    ahead = 0

    def takes_ahead(self, action: Infer) -> bool:
        """See `mainspring.worker.engine.Queues`."""
        taken: bool = self._engine.takes_ahead(action)
        self.ahead += taken
        return taken


def served(device: LoneDevice, engine: Any, spec: ModelSpec, runs: int, rights: Rights) -> list[Result]:
    """Return the results of so many INFERs or a few more, of which some always wait, in their order.

    The model is resident in the first pages.
    """
    core = WorkerCore(NAME, device.pages, PAGE_BYTES, device.engine.io.size)
    core.residency.add(spec)
    core.residency.pages.acquire(spec.name, tuple(range(spec.pages)))
    core.residency.pages.confirm(spec.name)
    outbox = Outbox()
    executors = Executors(core, engine, rights, outbox, spin_ns=100_000)
    results: list[Result] = []
    ids = itertools.count(1)
    executors.start()
    try:
        while len(results) < runs and not executors.broken:
            _feed(core, executors, spec, ids)
            select.select([outbox.bell], [], [], executors.expire(EXPIRY_NS) / 1e9)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(outbox.bell)
            _take(device, core, executors, outbox, results)
    finally:
        ended = executors.stop(ENDING_S)
        _take(device, core, executors, outbox, results)
        outbox.close()
    if executors.broken or not ended:
        raise RuntimeError(executors.broken or f"the worker's threads did not end within {ENDING_S:.0f} s")
    return results


def _feed(core: WorkerCore, executors: Executors, spec: ModelSpec, ids: Iterator[int]) -> None:
    while core.outstanding < WAITING:
        action_id, now_ns = next(ids), time.monotonic_ns()
        window = now_ns, now_ns + WINDOW_NS, now_ns, 0
        action = Infer(action_id, NAME, spec.name, 1, (0,), (1,), (False,), *window)
        with executors.driving():
            if core.submit(now_ns, action):
                return  # No IO memory is free before another one's outputs are taken.
            core.input_arrived(action_id, 0, now_ns)


def _take(
    device: LoneDevice, core: WorkerCore, executors: Executors, outbox: Outbox, results: list[Result]
) -> None:
    executors.settle()
    while (end := outbox.pop()) is not None:
        result, io = end
        if result is not None:
            results.append(result)
        if io is not None:
            if isinstance(device.engine, OwnMemory):
                device.engine.transfers.receive(io)
            with executors.driving():
                core.outputs_sent(io.slot)
