"""Reading the state of this machine's GPUs through NVML, the driver's own monitor.

It needs the driver and the extra ``cuda``, but no context on a GPU, so any process may ask at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec

from mainspring import extras
from mainspring.worker.engines.cuda.numa import normal_bus_id
from mainspring.worker.engines.cuda.state import GpuState, Process, problems

MOST_XIDS = 1_000
"""Xid errors after which no more are counted."""


class NvmlMissing(RuntimeError):
    """NVML can't be used; the text says why."""


def read_states() -> list[GpuState]:
    """Return the state of every GPU, as ``nvidia-smi`` counts them; raise `NvmlMissing`."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlMissing(f"nvidia-ml-py is not installed: {extras.command('gpu')}") from error
    return states_of(pynvml)


def try_states() -> list[GpuState] | str:
    """Return the state of every GPU, or why it is unknown."""
    try:
        return read_states()
    except NvmlMissing as error:
        return str(error)


def notes_about(bus_id: str, states: list[GpuState] | str, *, watched: bool = False) -> tuple[str, ...]:
    """Return, for the operator, what makes the timing of the GPU at this place on the bus unpredictable.

    If it is ``watched`` from now on, that is only what can't be told later: who used it before.
    """
    if isinstance(states, str):
        return (f"the state of the GPU at {bus_id} is not known ({states})",)
    found = [state for state in states if state.bus_id == bus_id][:1]
    if watched:
        found = [
            GpuState(index=each.index, name=each.name, bus_id=bus_id, processes=each.processes)
            for each in found
        ]
    return tuple(
        f"GPU at {bus_id}: {each.found}; {each.costs}" for state in found for each in problems(state)
    )


class Reader:
    """Reads the state of one GPU again and again, and collects its Xid errors."""

    def __init__(self, nvml: Any, bus_id: str) -> None:
        """Find the GPU at this place on the bus; raise `NvmlMissing` if NVML can't be asked about it."""
        self._nvml = nvml
        self._xids: list[int] = []
        with _answering(nvml), ExitStack() as opened:
            nvml.nvmlInit()
            opened.callback(self.close)
            self._driver = _text(nvml.nvmlSystemGetDriverVersion())
            # No other GPU is asked: one that is lost would fail the search.
            self._index = int(nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(bus_id)))
            self._events = self._register()
            opened.pop_all()

    def read(self) -> GpuState:
        """Return the present state, without processes: the worker is one; raise `NvmlMissing`."""
        self._collect()
        with _answering(self._nvml):
            state = _state(self._nvml, self._index, self._driver)
        return msgspec.structs.replace(state, xids=tuple(self._xids))

    def close(self) -> None:
        """Give NVML back."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _register(self) -> Any:
        """Ask for Xid errors; None where the driver does not report them."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except (nvml.NVMLError, AttributeError):
            return None
        return events

    def _collect(self) -> None:
        """Take note of the Xid errors that have come; a time-out is how NVML says that there is none."""
        if self._events is None:
            return
        with suppress(self._nvml.NVMLError):
            while len(self._xids) < MOST_XIDS:
                self._xids.append(int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData))


def try_reader(bus_id: str) -> Reader | None:
    """Return a reader of the GPU at this place on the bus, or None where NVML can't be used."""
    try:
        import pynvml

        return Reader(pynvml, bus_id)
    except (ImportError, NvmlMissing):
        return None


def states_of(nvml: Any) -> list[GpuState]:
    """Return the states that this NVML reports; raise `NvmlMissing` if it does not answer.

    A GPU that does not answer while others do has a state that says so.
    """
    with _answering(nvml):
        nvml.nvmlInit()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            indices = range(nvml.nvmlDeviceGetCount())
            return [_state_or_silent(nvml, index, driver) for index in indices]
        finally:
            nvml.nvmlShutdown()


@contextmanager
def _answering(nvml: Any) -> Iterator[None]:
    """Raise what NVML raises inside as `NvmlMissing`."""
    try:
        yield
    except nvml.NVMLError as error:
        raise NvmlMissing(f"NVIDIA's driver does not answer: {error}") from error


def _state_or_silent(nvml: Any, index: int, driver: str) -> GpuState:
    try:
        return _state(nvml, index, driver, with_processes=True)
    except nvml.NVMLError as error:
        place = ""
        with suppress(nvml.NVMLError):
            info = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(index))
            place = normal_bus_id(_text(info.busId))
        return GpuState(index=index, name="", silent=str(error), bus_id=place, driver=driver)


def _state(nvml: Any, index: int, driver: str, *, with_processes: bool = False) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(call: str, *args: Any) -> Any:
        """Return the answer; None if this GPU or driver does not give it, or not to this user."""
        function: Callable[..., Any] | None = getattr(nvml, call, None)
        try:
            return None if function is None else function(handle, *args)
        except nvml.NVMLError:
            return None

    memory = ask("nvmlDeviceGetMemoryInfo")
    ecc, mig = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode")
    persistence = ask("nvmlDeviceGetPersistenceMode")
    remapped = ask("nvmlDeviceGetRemappedRows")
    return GpuState(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(ask("nvmlDeviceGetUUID") or ""),
        bus_id=normal_bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        driver=driver,
        total_bytes=int(memory.total) if memory is not None else 0,
        used_bytes=int(memory.used) if memory is not None else 0,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        power_w=_watts(ask("nvmlDeviceGetPowerUsage")),
        power_limit_w=_watts(ask("nvmlDeviceGetPowerManagementLimit")),
        power_limit_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle_mask=_throttling(ask),
        ecc=None if ecc is None else bool(ecc[0]),
        uncorrected_errors=ask(
            "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        remapped_rows=None if remapped is None else int(remapped[0]) + int(remapped[1]),
        remap_pending=remapped is not None and bool(remapped[2]),
        remap_failed=remapped is not None and bool(remapped[3]),
        mig=None if mig is None else bool(mig[0]),
        persistence=None if persistence is None else bool(persistence),
        prohibited=ask("nvmlDeviceGetComputeMode") == nvml.NVML_COMPUTEMODE_PROHIBITED,
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        processes=_processes(ask) if with_processes else (),
    )


def _throttling(ask: Callable[..., Any]) -> int:
    # Newer drivers call the reasons events.
    for call in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        mask = ask(call)
        if mask is not None:
            return int(mask)
    return 0


def _processes(ask: Callable[..., Any]) -> tuple[Process, ...]:
    found: dict[int, Process] = {}
    for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in ask(call) or ():
            found[process.pid] = Process(int(process.pid), int(process.usedGpuMemory or 0))
    return tuple(found.values())


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
