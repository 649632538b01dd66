"""Figure 2b: what several inferences at a time gain in throughput, and what they cost in predictability.

Each of the threads has an engine of its own, with its own pages, workspace and, on a GPU, streams: as a
server with a pool of threads would have it, and as a worker of ours never runs. Where the processor is the
device, that is one core, on which all of the threads are: with a core for each there would be more devices.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import msgspec
import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, device_for, random_rows
from mainspring.compiler.choosing.durations import Ints, quantile
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import WorkerConfig

WARM_UP = 50
PERCENTS = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0)
TOLD_EVERY = 1000
"""Runs between two looks at the clock to tell how far it is."""


class Series(msgspec.Struct, frozen=True):
    """Durations of one kind, brief enough to be kept and whole enough to be drawn."""

    name: str
    runs: int
    percentiles_ms: dict[str, float]
    tail: list[tuple[float, float]]
    """Share of the runs that took longer, falling, and the duration in ms: for a plot."""

    @property
    def spread(self) -> float | None:
        """Share by which the 99.99th percentile is above the median; None if there are too few runs."""
        high = self.percentiles_ms.get("99.99")
        return None if high is None else high / self.percentiles_ms["50"] - 1


def repeat_in_isolation(
    run: Callable[[], int], runs: int, *, cpu_time: bool, told: Callable[[int], None] = lambda _: None
) -> dict[str, Ints]:
    """Return the durations in ns of ``runs`` runs: what ``run`` returned, as ``device``.

    With ``cpu_time`` also what this thread spent computing, as ``cpu``: where the processor is the device,
    the difference is time that the machine gave to others. ``told`` hears now and then how many are done.
    """
    for _ in range(WARM_UP):
        run()
    device, cpu = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    clock = time.thread_time_ns if cpu_time else _no_time
    for begin in range(0, runs, TOLD_EVERY):
        for index in range(begin, min(begin + TOLD_EVERY, runs)):
            before_ns = clock()
            device[index] = run()
            cpu[index] = clock() - before_ns
        told(min(begin + TOLD_EVERY, runs))
    return {"device": device, "cpu": cpu} if cpu_time else {"device": device}


def series_of(name: str, durations_ns: Ints, points: int = 200) -> Series:
    """Return durations as percentiles and as a tail of about so many points, dense where they are rare."""
    runs = len(durations_ns)
    ascending = np.sort(durations_ns)
    known = [percent for percent in PERCENTS if percent == 100 or runs * (100 - percent) >= 100 * (1 - 1e-9)]
    beyond = np.unique(np.geomspace(1, runs, points).astype(np.int64))[::-1]
    return Series(
        name=name,
        runs=runs,
        percentiles_ms={f"{percent:g}": quantile(ascending, percent) / 1e6 for percent in known},
        tail=[(float(count) / runs, float(ascending[runs - count]) / 1e6) for count in beyond],
    )


def _no_time() -> int:
    return 0


PATIENCE_S = 120.0
LEAST_NICE = -20
ROUNDS = 4
"""Turns of each level."""


class Level(msgspec.Struct, frozen=True):
    """One number of inferences at a time."""

    concurrency: int
    rate: float
    """Inferences per second of all threads together."""
    latency: Series


def measure_levels(
    config: WorkerConfig,
    model: ModelSpec,
    batch_size: int,
    levels: Sequence[int],
    seconds: float,
    told: Callable[[int], None] = lambda _: None,
) -> list[Level]:
    """Return what so many threads did that each ran one inference after the other, for ``seconds`` in all.

    The levels take turns, because a machine's speed drifts. ``told`` hears the level that is begun. Raises
    what the first engine that failed raised.
    """
    core = max(os.sched_getaffinity(0)) if config.cuda_device is None else None
    latencies: dict[int, list[Ints]] = {level: [] for level in levels}
    took_s = dict.fromkeys(levels, 0.0)
    with ExitStack() as stack:
        devices = [stack.enter_context(_ready(config, model, batch_size)) for _ in range(max(levels))]
        runs = [device.infer(model, batch_size) for device in devices]
        for level in [*levels] * ROUNDS:
            told(level)
            found, round_s = run_together(runs[:level], seconds / ROUNDS, core)
            latencies[level] += found
            took_s[level] += round_s
    durations = {level: np.concatenate(found) for level, found in latencies.items()}
    return [
        Level(level, len(found) / took_s[level], series_of(f"{level} at a time", found))
        for level, found in durations.items()
    ]


def run_together(
    runs: Sequence[Callable[[], object]], seconds: float, core: int | None = None
) -> tuple[list[Ints], float]:
    """Call each of ``runs`` again and again in its own thread; return latencies in ns and the time taken.

    A latency is what the caller waits for, so what others keep it waiting counts. With ``core`` the threads
    share that core, and go before all other programs there where the user may have that.
    """
    latencies: list[Ints] = [np.zeros(0, np.int64)] * len(runs)
    errors: list[BaseException] = []
    spans: list[tuple[int, int]] = []
    together = threading.Barrier(len(runs))

    def body(index: int) -> None:
        try:
            if core is not None:
                _claim(core)
            for _ in range(max(1, WARM_UP // len(runs))):
                runs[index]()
            together.wait(PATIENCE_S)
            begin_ns = time.monotonic_ns()
            latencies[index] = _run_for(runs[index], seconds)
            spans.append((begin_ns, time.monotonic_ns()))
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=body, args=(index,), daemon=True) for index in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next(
            (error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0]
        )
    return latencies, (max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e9


def _claim(core: int) -> None:
    os.sched_setaffinity(0, {core})
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_NICE)


def _run_for(run: Callable[[], object], seconds: float) -> Ints:
    durations: list[int] = []
    before_ns = time.monotonic_ns()
    end_ns = before_ns + round(seconds * 1e9)
    while not durations or before_ns < end_ns:
        run()
        now_ns = time.monotonic_ns()
        durations.append(now_ns - before_ns)
        before_ns = now_ns
    return np.array(durations, np.int64)


def _ready(config: WorkerConfig, model: ModelSpec, batch_size: int) -> LoneDevice:
    device = device_for([model], config, copies=1)
    try:
        device.prepare(model)
        device.load(model)
        device.fill(model, batch_size, random_rows(model, batch_size))
    except BaseException:
        device.engine.close()
        raise
    return device
