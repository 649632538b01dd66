"""Which GPU it is, in what state, and what about it makes its timing unpredictable: to read the others by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainspring.experiments.gpu_check.executing import spans_ns
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, not_run, told
from mainspring.worker.engines.cuda.driver import open_driver
from mainspring.worker.engines.cuda.monitor import StateReader
from mainspring.worker.engines.cuda.nvml import NvmlMissing, try_reader, try_states
from mainspring.worker.engines.cuda.state import GpuState, describe, problems

READINGS = 30
"""Times that the GPU's state is read."""


def tell_device(settings: Settings) -> list[Verdict]:
    """Return a line about the GPU and one about each thing that could be better."""
    number = settings.config().cuda_device
    if number is None:
        return [told("device", "this machine's processor")]
    # Before this process uses the GPU itself, which would be told of as a process that disturbs.
    states = try_states()
    driver = open_driver(number)
    try:
        found = lines(driver.name(), driver.bus_id(), states)
        return [*found, *of_readings(try_reader(driver.bus_id()))]
    finally:
        driver.close()


def of_readings(reader: StateReader | None) -> list[Verdict]:
    """Time what a worker does once a second while it serves: it reads the state. None: NVML can't be used."""
    what = "  reading the state"
    if reader is None:
        return [not_run(what, "NVML can't be used here")]
    try:
        took_us = spans_ns(reader.read, READINGS) / 1e3
    except NvmlMissing as error:
        return [not_run(what, str(error))]
    finally:
        reader.close()
    of_first = f"the first {took_us[0]:.0f}, the others up to {took_us[1:].max():.0f}"
    return [told(what, f"{np.median(took_us):.0f} us", f"{of_first}; a worker reads once a second")]


def lines(name: str, bus_id: str, states: Sequence[GpuState] | str) -> list[Verdict]:
    """Return what there is to tell of the GPU at this place of the bus."""
    if isinstance(states, str):
        return [told("device", name), not_run("  its state", states)]
    state = next((state for state in states if state.bus_id == bus_id), None)
    if state is None:
        return [told("device", name), not_run("  its state", f"NVML knows no GPU at {bus_id}")]
    found = [told("device", describe(state))]
    return found + [told("  could be better", each.found, each.costs) for each in problems(state)]
