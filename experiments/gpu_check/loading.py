"""LOAD of the main model, from its begin to its end, against the plain copy of as many bytes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.timings import Ints
from mainspring.experiments.gpu_check.copies import PlainCopy, plain_copy
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_least, told
from mainspring.messages.model import ModelSpec
from mainspring.worker.realtime import Rights

SHARE = 0.95


def check_loading(settings: Settings) -> list[Verdict]:
    """Measure LOAD and the plain copy in turns, in a thread like a worker's LOAD.

    That matters: chunks are sent one after the other, and in an interpreter that lets another thread go on
    for its usual 5 ms the copy would wait for it.
    """
    spec = Store(settings.store(settings.engine)).manifest(settings.main).spec()
    plain = plain_copy(settings, spec.weights_bytes)
    rights = Rights(settings.realtime)
    try:
        with device_for([spec], settings.config()) as device:
            device.prepare(spec)
            with rights.claimed_process(), ThreadPoolExecutor(1, initializer=rights.claim_load) as thread:
                loads = thread.submit(in_turns, device, spec, plain, settings.loads).result()
    finally:
        plain.close()
    return verdicts(spec, *loads)


def in_turns(device: LoneDevice, spec: ModelSpec, plain: PlainCopy, rounds: int) -> tuple[Ints, Ints, Ints]:
    """Return durations in ns of LOADs of a prepared model, of their copies, and of plain copies in turns.

    A LOAD's duration is the host's, from the call to its return, which is what the scheduler learns.
    """
    loads, own_copies, copies = [], [], []
    for number in range(rounds + 1):
        copies.append(plain.copy())
        begin_ns = time.monotonic_ns()
        own_copies.append(device.load(spec, first_page=spec.pages * (number % 2)))
        loads.append(time.monotonic_ns() - begin_ns)
    # The first of each touches what nobody had touched.
    return np.array(loads[1:], np.int64), np.array(own_copies[1:], np.int64), np.array(copies[1:], np.int64)


def verdicts(spec: ModelSpec, loads: Ints, own_copies: Ints, copies: Ints) -> list[Verdict]:
    """Judge the medians."""
    load_ns, own_ns, copy_ns = (float(np.median(each)) for each in (loads, own_copies, copies))
    size = f"{spec.weights_bytes / 1e6:.1f} MB in {spec.pages} pages"
    return [
        at_least(
            f"LOAD {spec.name}, begin to end: share of the bandwidth to the device",
            copy_ns / load_ns,
            SHARE,
            note=f"{size}; medians of {len(loads)} in turns",
        ),
        told("  LOAD", f"{load_ns / 1e6:.3f} ms", f"{spec.weights_bytes / load_ns:.2f} GB/s"),
        told("  of which its copy", f"{own_ns / 1e6:.3f} ms", f"{spec.weights_bytes / own_ns:.2f} GB/s"),
        told("  plain copy", f"{copy_ns / 1e6:.3f} ms", f"{spec.weights_bytes / copy_ns:.2f} GB/s"),
    ]
