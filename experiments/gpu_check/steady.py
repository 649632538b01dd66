"""Is INFER as predictable with LOADs beside it as it has to be? Its 99.99th percentile against its median."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mainspring.compiler.store import Store
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, told
from mainspring.launch.lone_device import LoneDevice, as_exec_thread, device_for, random_rows
from mainspring.launch.timings import Ints, quantile
from mainspring.messages.model import ModelSpec
from mainspring.worker.realtime import Rights

ABOVE = 0.01
"""What the 99.99th percentile may be above the median, as a share of it."""
WARM_UP = 200
SECOND = "2"
"""What follows the main model's name in that of the copy that is loaded beside it."""


def check_steadiness(settings: Settings) -> list[Verdict]:
    """Run the main model again and again while its copy is loaded again and again."""
    store = Store(settings.store(settings.engine))
    running, loaded = (store.manifest(name).spec() for name in (settings.main, settings.main + SECOND))
    rights = Rights(settings.realtime)
    with device_for([running, loaded], settings.config()) as device:
        for spec in (running, loaded):
            device.prepare(spec)
        device.load(running)
        device.fill(running, 1, random_rows(running, 1))
        rights.claim_process()
        try:
            with loading_beside(device, loaded, running.pages) as loads:
                durations = as_exec_thread(
                    rights, lambda: run_again_and_again(device, running, settings.infers, settings.infers_s)
                )
        finally:
            rights.release_process()
    return verdicts(running, durations, settings.infers, len(loads), rights.notes)


def run_again_and_again(device: LoneDevice, spec: ModelSpec, runs: int, seconds: float) -> Ints:
    """Return the durations in ns of so many runs of a resident model, of fewer if the time does not do."""
    run = device.infer(spec, 1)
    for _ in range(min(WARM_UP, runs)):
        run()
    durations = np.zeros(runs, np.int64)
    end_ns = time.monotonic_ns() + round(seconds * 1e9)
    for index in range(runs):
        durations[index] = run()
        if time.monotonic_ns() > end_ns:
            return durations[: index + 1]
    return durations


@contextmanager
def loading_beside(device: LoneDevice, spec: ModelSpec, first_page: int) -> Iterator[list[int]]:
    """Load a prepared model again and again in another thread; the list grows by each LOAD's duration in ns.

    Raises afterwards what a LOAD raised.
    """
    stop = threading.Event()
    durations: list[int] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            while not stop.is_set():
                durations.append(device.load(spec, first_page))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="load", daemon=True)
    thread.start()
    try:
        yield durations
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


def verdicts(spec: ModelSpec, durations: Ints, wanted: int, loads: int, notes: list[str]) -> list[Verdict]:
    """Judge how far the tail is above the median."""
    median = quantile(durations, 50)
    tail = quantile(durations, 99.99)
    note = f"{len(durations):,} runs of {spec.name} beside {loads:,} LOADs"
    if len(durations) < wanted:
        note += f" (time was up before {wanted:,})"
    return [
        at_most(
            "INFER: 99.99th percentile above the median, LOADs beside",
            100 * (tail / median - 1),
            100 * ABOVE,
            "%",
            "; ".join([note, *notes]),
        ),
        told(
            "  median, 99.99th, longest",
            ", ".join(f"{ns / 1e6:.4f}" for ns in (median, tail, durations.max())),
            "ms",
        ),
    ]
