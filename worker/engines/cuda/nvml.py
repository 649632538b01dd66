"""Reading the state of this machine's GPUs through NVML, the driver's own monitor.

It needs the driver and the extra ``cuda``, but no context on a GPU, so any process may ask at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainspring import extras
from mainspring.worker.engines.cuda.numa import normal_bus_id
from mainspring.worker.engines.cuda.state import GpuState, Process, problems


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


def notes_about(bus_id: str, states: list[GpuState] | str) -> tuple[str, ...]:
    """Return, for the operator, what makes the timing of the GPU at this place on the bus unpredictable."""
    if isinstance(states, str):
        return (f"the state of the GPU at {bus_id} is not known ({states})",)
    found = (problems(state) for state in states if state.bus_id == bus_id)
    return tuple(f"GPU at {bus_id}: {each.found}; {each.costs}" for each in next(found, []))


def states_of(nvml: Any) -> list[GpuState]:
    """Return the states that this NVML reports; raise `NvmlMissing` if it does not answer."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlMissing(f"NVIDIA's driver does not answer: {error}") from error
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return [_state(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise NvmlMissing(f"NVIDIA's driver does not answer: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _state(nvml: Any, index: int, driver: str) -> GpuState:
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
        power_limit_w=_watts(ask("nvmlDeviceGetPowerManagementLimit")),
        power_limit_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle_mask=_throttling(ask),
        ecc=None if ecc is None else bool(ecc[0]),
        uncorrected_errors=ask(
            "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        mig=None if mig is None else bool(mig[0]),
        persistence=None if persistence is None else bool(persistence),
        prohibited=ask("nvmlDeviceGetComputeMode") == nvml.NVML_COMPUTEMODE_PROHIBITED,
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        processes=_processes(ask),
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
