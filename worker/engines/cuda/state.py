"""The conditions of a GPU that make its timing unpredictable: clocks, power, errors, partitions, other
processes. Pure.

`nvml` reads the state, this file judges it, and `mainspring doctor` and a worker's notes report it
(Clockwork, section 3: inference on a device is predictable as long as nothing disturbs the device).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mainspring.messages.metrics import DeviceHealth, Reading

GIB = 1 << 30


class Throttling(NamedTuple):
    """A reason for which a GPU's clocks are below the requested one."""

    label: str
    """Name of the reason in metrics."""
    text: str


THROTTLING = {
    0x04: Throttling("power", "its power limit"),
    0x08: Throttling("hardware", "a hardware slowdown"),
    0x10: Throttling("other_gpus", "other GPUs that it keeps step with"),
    0x20: Throttling("temperature", "its temperature"),
    0x40: Throttling("temperature_hardware", "its temperature (hardware)"),
    0x80: Throttling("power_brake", "a power brake of its machine"),
}
"""NVML's bits for these; idling and a clock set by the operator are left out."""

CLOCK_SHARE = 0.98
"""Share of the highest clock below which an idle GPU whose clocks are locked there does not fall."""


class Process(msgspec.Struct, frozen=True):
    """A process that uses a GPU."""

    pid: int
    used_bytes: int
    """0 where the driver does not report it."""


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU at one moment; None and empty where its driver reports nothing."""

    index: int
    """The number that ``nvidia-smi`` shows."""
    name: str
    """Name that its maker gives it; empty if it does not answer."""
    silent: str = ""
    """Message of the driver in place of the state, for a GPU that does not answer; else empty."""
    uuid: str = ""
    bus_id: str
    """PCI bus address, as `mainspring.worker.engines.cuda.numa` writes it."""
    driver: str = ""
    total_bytes: int = 0
    used_bytes: int = 0
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: int | None = None
    throttle_mask: int = 0
    ecc: bool | None = None
    uncorrected_errors: int | None = None
    """Counted since the driver was loaded."""
    remapped_rows: int | None = None
    """Rows of memory that were replaced for errors."""
    remap_pending: bool = False
    """True if a row waits for the next reset to be replaced."""
    remap_failed: bool = False
    xids: tuple[int, ...] = ()
    """Xid errors that the driver has reported since it is asked for them."""
    mig: bool | None = None
    persistence: bool | None = None
    prohibited: bool = False
    """True if its compute mode lets no process use it."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    processes: tuple[Process, ...] = ()


class Problem(NamedTuple):
    """One thing about a GPU that could be better."""

    found: str
    costs: str
    remedy: str


def describe(state: GpuState) -> str:
    """Return a line about a GPU for the operator."""
    if state.silent:
        place = f", bus {state.bus_id}" if state.bus_id else ""
        return f"it does not answer: {state.silent}{place}"
    parts = [f"{state.name}, {state.total_bytes / GIB:.0f} GiB ({state.used_bytes / GIB:.1f} used)"]
    if state.sm_clock_mhz is not None and state.sm_clock_max_mhz is not None:
        parts.append(f"SM clock {state.sm_clock_mhz} of {state.sm_clock_max_mhz} MHz")
    if state.power_limit_w is not None:
        parts.append(f"power limit {state.power_limit_w:.0f} W")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c} C")
    if state.ecc is not None:
        parts.append(f"ECC {'on' if state.ecc else 'off'}")
    if state.mig is not None:
        parts.append(f"MIG {'on' if state.mig else 'off'}")
    parts.append(f"bus {state.bus_id}")
    return ", ".join(parts + ([f"driver {state.driver}"] if state.driver else []))


def problems(state: GpuState) -> list[Problem]:
    """Return what makes the GPU's timing unpredictable, be it idle or busy."""
    if state.silent:
        return [
            Problem(
                f"it does not answer: {state.silent}",
                "no worker can use it, and CUDA may count the others differently",
                f"look for Xid in `dmesg`; nvidia-smi -i {state.index} --gpu-reset, or restart the machine",
            )
        ]
    found = [*_clocks(state), *_memory_and_bus(state)]
    if state.prohibited:
        remedy = f"nvidia-smi -i {state.index} -c DEFAULT"
        found.append(Problem("its compute mode is PROHIBITED", "no process may use it", remedy))
    if state.mig:
        found.append(
            Problem(
                "MIG is on: the GPU is divided",
                "a worker has a slice, and shares the bus and the power with the others",
                f"nvidia-smi -i {state.index} -mig 0, or leave the other slices idle",
            )
        )
    if state.processes:
        names = ", ".join(f"{each.pid} ({each.used_bytes / GIB:.1f} GiB)" for each in state.processes)
        found.append(
            Problem(
                f"processes use it: {names}",
                "their kernels run between ours, and what memory they have is not for pages",
                "end them, or give the workers other GPUs (CUDA_VISIBLE_DEVICES)",
            )
        )
    return found


def idle_clock(state: GpuState) -> list[Problem]:
    """Return what the clock of a GPU that has nothing to do says; a busy one's changes with its work."""
    clock, most = state.sm_clock_mhz, state.sm_clock_max_mhz
    if clock is None or not most or throttled(state) or clock >= CLOCK_SHARE * most:
        return []
    return [
        Problem(
            f"its SM clock is {clock} MHz of {most}: it follows the load, unless it is locked there",
            "what runs after a pause takes longer than what runs at full load",
            f"nvidia-smi -i {state.index} -pm 1 && nvidia-smi -i {state.index} -lgc {most},{most}; "
            "or a lower clock that it keeps under full load",
        )
    ]


def throttled(state: GpuState) -> list[Throttling]:
    """Return what holds the GPU's clocks down."""
    return [each for bit, each in THROTTLING.items() if state.throttle_mask & bit]


def _clocks(state: GpuState) -> list[Problem]:
    found = []
    reasons = throttled(state)
    if reasons:
        found.append(
            Problem(
                f"its clocks are held down by {' and '.join(each.text for each in reasons)}",
                "the same kernels take longer than when the models were measured",
                "cool it, raise its power limit (nvidia-smi -pl), or lock a clock that it can keep",
            )
        )
    if state.persistence is False:
        found.append(
            Problem(
                "persistence mode is off",
                "the driver unloads while no process uses the GPU: a worker starts slowly, settings are lost",
                f"nvidia-smi -i {state.index} -pm 1",
            )
        )
    limit, usual = state.power_limit_w, state.power_limit_default_w
    if limit is not None and usual is not None and limit < usual:
        found.append(
            Problem(
                f"its power limit is {limit:.0f} W, below the usual {usual:.0f} W",
                "clocks fall under load sooner",
                f"nvidia-smi -i {state.index} -pl {usual:.0f}",
            )
        )
    return found


def _memory_and_bus(state: GpuState) -> list[Problem]:
    found = []
    if state.ecc is False:
        found.append(
            Problem(
                "ECC is off",
                "a flipped bit is not noticed: it becomes a wrong answer",
                f"nvidia-smi -i {state.index} -e 1, then restart the machine",
            )
        )
    if state.uncorrected_errors:
        found.append(
            Problem(
                f"{state.uncorrected_errors} uncorrectable memory errors since the driver was loaded",
                "the next one ends the worker",
                f"nvidia-smi -i {state.index} --gpu-reset while nothing uses it; replace it if they return",
            )
        )
    if state.remap_failed or state.remap_pending:
        what = "could not be replaced" if state.remap_failed else "waits to be replaced"
        remedy = "replace the GPU" if state.remap_failed else f"nvidia-smi -i {state.index} --gpu-reset"
        found.append(
            Problem(
                f"a faulty row of its memory {what}",
                "an error there ends the worker",
                f"{remedy} while nothing uses it",
            )
        )
    if state.xids:
        numbers = ", ".join(map(str, state.xids[-5:]))
        found.append(
            Problem(
                f"its driver has reported Xid {numbers}",
                "it may have lost work, and may not answer any more",
                "look the number up in NVIDIA's Xid documentation, and into `dmesg`",
            )
        )
    width, most = state.pcie_width, state.pcie_width_max
    if width is not None and most is not None and width < most:
        found.append(
            Problem(
                f"its bus has {width} lanes of {most}",
                "a LOAD takes that much longer",
                "seat it in another slot, or choose the slot's width in the machine's firmware",
            )
        )
    return found


def graph_health(refused: Sequence[str]) -> DeviceHealth:
    """Return what is to be told of executables without a graph; ``refused`` says why, for each of them."""
    notes = tuple(
        f"kernels of {count} {'executables' if count > 1 else 'executable'} are launched one by one, because "
        f"no CUDA graph can be made: {reason}; each EXEC takes longer by its launches"
        for reason, count in Counter(refused).items()
    )
    return DeviceHealth(notes, (Reading("mainspring_gpu_executables_without_graph", float(len(refused))),))


def readings(state: GpuState) -> tuple[Reading, ...]:
    """Return a GPU's state as numbers for metrics; what its driver does not report is left out."""
    clock = None if state.sm_clock_mhz is None else state.sm_clock_mhz * 1e6
    found = {
        "mainspring_gpu_sm_clock_hertz": clock,
        "mainspring_gpu_temperature_celsius": state.temperature_c,
        "mainspring_gpu_power_watts": state.power_w,
        "mainspring_gpu_memory_used_bytes": state.used_bytes,
        "mainspring_gpu_uncorrected_errors": state.uncorrected_errors,
        "mainspring_gpu_remapped_rows": state.remapped_rows,
        "mainspring_gpu_xid_errors": len(state.xids),
    }
    reasons = [
        Reading("mainspring_gpu_throttled", float(bool(state.throttle_mask & bit)), each.label)
        for bit, each in THROTTLING.items()
    ]
    return (*(Reading(name, float(value)) for name, value in found.items() if value is not None), *reasons)
