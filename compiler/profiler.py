"""Seed durations: how long a LOAD and an INFER at each batch size take on this machine.

Clockwork, section 5.1 and appendix A. A seed serves only until the scheduler has measured durations of its
own. A worker has its core to itself, so the CPU time of the thread that runs the model counts: time that
other processes took from it while compiling would make a model look impossible to serve. `mainspring profile`
measures a device with a worker's engine; both make seeds from durations in the same way (`timings`).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import psutil

from mainspring.compiler.artifact.arrays import BatchArrays, Runnable
from mainspring.compiler.artifact.executable import BoundModel
from mainspring.compiler.artifact.manifest import ExecutableInfo
from mainspring.compiler.layout import Arena
from mainspring.compiler.timings import Effort, Timing, repeat

_EFFORT = Effort(seconds=0.4, fewest=2, most=15, warm_up=1)
"""Small, because compiling waits for it at every batch size."""


def measure_infer(model: Runnable, info: ExecutableInfo, batch_sizes: Sequence[int]) -> dict[int, int]:
    """Return the seed duration in nanoseconds of each batch size."""
    seeds = {}
    for batch_size in batch_sizes:
        zeros = BatchArrays(info, batch_size)

        def run(zeros: BatchArrays = zeros) -> int:
            begin_ns = time.thread_time_ns()
            zeros.run(model)
            return time.thread_time_ns() - begin_ns

        seeds[batch_size] = Timing.of(repeat(run, _EFFORT)).seed_ns
    return seeds


def measure_load(arena: Arena) -> int:
    """Return the seed duration in nanoseconds of a LOAD into memory that was touched before."""
    return Timing.of(repeat(arena.load, _EFFORT)).seed_ns


def measure_workspace(model: BoundModel, batch_size: int) -> int:
    """Return the growth of this process, in bytes, at the first run of a model with its own workspace."""
    process = psutil.Process()
    _trim_heap()
    before = process.memory_info().rss
    model.warm([batch_size])
    return int(max(0, process.memory_info().rss - before))


def _trim_heap() -> None:
    """Return freed memory to the system if the C library can: reusing it would hide growth."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
