"""LOAD of the main model, from its begin to its end, against the plain copy of as many bytes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Ints
from mainspring.experiments.gpu_check.copies import PlainCopy, plain_copies
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_least, told
from mainspring.messages.model import ModelSpec
from mainspring.worker.realtime import Rights

SHARE = 0.95


def check_loading(settings: Settings) -> list[Verdict]:
    """Measure LOAD and plain copies in turns, in a thread like a worker's LOAD.

    That matters: chunks are sent one after the other, and in an interpreter that lets another thread go on
    for its usual 5 ms the copy would wait for it.
    """
    spec = Store(settings.store(settings.engine)).manifest(settings.main).spec()
    rights = Rights(settings.realtime)
    with (
        plain_copies(settings, spec.weights_bytes) as plain,
        device_for([spec], settings.config()) as device,
    ):
        device.prepare(spec)
        with rights.claimed_process(), ThreadPoolExecutor(1, initializer=rights.claim_load) as thread:
            loads = thread.submit(in_turns, device, spec, plain, settings.loads).result()
    return verdicts(spec, *loads)


def in_turns(
    device: LoneDevice, spec: ModelSpec, plain: dict[str, PlainCopy], rounds: int
) -> tuple[Ints, Ints, dict[str, Ints]]:
    """Return durations in ns of LOADs of a prepared model, of their copies, and of plain copies in turns.

    A LOAD's duration is the host's, from the call to its return, which is what the scheduler learns.
    """
    loads, own_copies = [], []
    copies: dict[str, list[int]] = {name: [] for name in plain}
    for number in range(rounds + 1):
        for name, each in plain.items():
            copies[name].append(each.copy())
        begin_ns = time.monotonic_ns()
        own_copies.append(device.load(spec, first_page=spec.pages * (number % 2)))
        loads.append(time.monotonic_ns() - begin_ns)
    # The first of each touches what nobody had touched.
    later = {name: np.array(durations[1:], np.int64) for name, durations in copies.items()}
    return np.array(loads[1:], np.int64), np.array(own_copies[1:], np.int64), later


def verdicts(spec: ModelSpec, loads: Ints, own_copies: Ints, copies: dict[str, Ints]) -> list[Verdict]:
    """Judge the median of LOADs by that of the first plain copies."""
    first = next(iter(copies.values()))
    rows = {"LOAD": loads, "of which its copy": own_copies, **copies}
    found = [
        at_least(
            f"LOAD {spec.name}, begin to end: share of the bandwidth to the device",
            float(np.median(first) / np.median(loads)),
            SHARE,
            note=f"{spec.weights_bytes / 1e6:.1f} MB in {spec.pages} pages; medians of {len(loads)} in turns",
        )
    ]
    for name, durations in rows.items():
        median_ns = float(np.median(durations))
        speed = f"{spec.weights_bytes / median_ns:.2f} GB/s"
        found.append(told(f"  {name}", f"{median_ns / 1e6:.3f} ms", speed))
    return found
