"""What is said of a GPU's state, and how it is read."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mainspring.worker.engines.cuda import nvml
from mainspring.worker.engines.cuda.numa import cores_near, node_of, normal_bus_id, parse_cores
from mainspring.worker.engines.cuda.nvml import NvmlMissing, notes_about, states_of, try_states
from mainspring.worker.engines.cuda.state import (
    GIB,
    THROTTLING,
    GpuState,
    Process,
    describe,
    idle_clock,
    problems,
)

GOOD = GpuState(
    index=0, name="NVIDIA H200", bus_id="0000:3b:00.0", driver="580.159", total_bytes=141 * GIB,
    sm_clock_mhz=1980, sm_clock_max_mhz=1980, power_limit_w=700.0, power_limit_default_w=700.0,
    temperature_c=31, ecc=True, uncorrected_errors=0, mig=False, persistence=True,
    pcie_width=16, pcie_width_max=16,
)  # fmt: skip


def test_a_gpu_that_is_left_alone_has_no_problem() -> None:
    assert problems(GOOD) == []
    assert describe(GOOD) == (
        "NVIDIA H200, 141 GiB (0.0 used), SM clock 1980 of 1980 MHz, power limit 700 W, 31 C, ECC on, "
        "MIG off, bus 0000:3b:00.0, driver 580.159"
    )


@pytest.mark.parametrize(
    ("fields", "found", "remedy"),
    [
        ({"throttle_mask": 0x04 | 0x20 | 0x01}, "held down by its power limit and its temperature", "-pl"),
        ({"power_limit_w": 500.0}, "500 W, below the usual 700 W", "-pl 700"),
        ({"ecc": False}, "ECC is off", "-e 1"),
        ({"uncorrected_errors": 3}, "3 uncorrectable memory errors", "--gpu-reset"),
        ({"mig": True}, "MIG is on", "-mig 0"),
        ({"persistence": False}, "persistence mode is off", "-pm 1"),
        ({"prohibited": True}, "PROHIBITED", "-c DEFAULT"),
        ({"pcie_width": 8}, "8 lanes of 16", "slot"),
        ({"remap_pending": True}, "waits to be replaced", "--gpu-reset"),
        ({"remap_pending": True, "remap_failed": True}, "could not be replaced", "replace the GPU"),
        ({"xids": (79, 31)}, "Xid 79, 31", "dmesg"),
        ({"processes": (Process(77, 2 * GIB),)}, "77 (2.0 GiB)", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_each_thing_that_disturbs_is_named_with_its_remedy(
    fields: dict[str, Any], found: str, remedy: str
) -> None:
    (problem,) = problems(msgspec.structs.replace(GOOD, **fields))
    assert found in problem.found
    assert remedy in problem.remedy
    assert problem.costs


def test_a_clock_below_the_highest_is_told_of_an_idle_gpu_alone() -> None:
    slow = msgspec.structs.replace(GOOD, sm_clock_mhz=345)
    (problem,) = idle_clock(slow)
    assert "345 MHz of 1980: it follows the load, unless it is locked there" in problem.found
    assert "-lgc 1980,1980" in problem.remedy
    assert problems(slow) == [], "while it serves, it is now idle and now busy"
    assert idle_clock(GOOD) == []
    assert idle_clock(msgspec.structs.replace(slow, throttle_mask=0x04)) == [], "it does not follow the load"


def test_what_the_driver_does_not_say_is_no_problem() -> None:
    state = GpuState(index=0, name="Tegra", bus_id="")
    assert problems(state) == idle_clock(state) == []
    assert describe(state) == "Tegra, 0 GiB (0.0 used), bus "


class NvmlError(Exception):
    """What NVML raises."""


class Nvml:
    """An NVML of GPUs that do not answer everything; the second may be lost."""

    NVMLError = NvmlError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_COMPUTEMODE_PROHIBITED = 2

    def __init__(self, count: int = 1, lost: str = "") -> None:
        self.open = 0
        self.count = count
        self.lost = lost
        """The call that fails for the second GPU."""
        self.refused = {"nvmlDeviceGetMigMode", "nvmlDeviceGetCurrentClocksEventReasons"}
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetUUID": "GPU-1234",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:3B:00.0"),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * GIB, used=GIB),
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetPowerManagementLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            "nvmlDeviceGetTemperature": 31,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetMigMode": [1, 1],
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPowerUsage": 312_500,
            "nvmlDeviceGetRemappedRows": [1, 2, 0, 0],
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=None)],
            "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=5)],
        }

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 1 and self.lost == "nvmlDeviceGetHandleByIndex":
            raise NvmlError("GPU is lost")
        return 100 + index

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> int:  # noqa: N802
        if bus_id != "0000:3b:00.0":
            raise NvmlError("Not Found")
        return 100

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle - 100

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def answer(handle: int, *_: int) -> Any:
            assert 100 <= handle < 100 + self.count
            if handle == 101 and name == self.lost:
                raise NvmlError("GPU is lost")
            if name in self.refused:
                raise NvmlError("Not Supported")
            return self.answers[name]

        return answer


def test_the_state_is_what_nvml_says_and_none_where_it_does_not() -> None:
    nvml = Nvml()
    (state,) = states_of(nvml)
    assert nvml.open == 0, "NVML was left open"
    assert state == GpuState(
        index=0, name="NVIDIA H200", uuid="GPU-1234", bus_id="0000:3b:00.0", driver="580.159",
        total_bytes=141 * GIB, used_bytes=GIB, sm_clock_mhz=345, sm_clock_max_mhz=1980,
        power_w=312.5, power_limit_w=700.0, power_limit_default_w=700.0, temperature_c=31,
        throttle_mask=0x20, ecc=True, remapped_rows=3,
        uncorrected_errors=0, mig=None, persistence=True, pcie_width=16, pcie_width_max=16,
        processes=(Process(7, 5),),
    )  # fmt: skip


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"])
def test_a_gpu_that_is_lost_is_told_and_the_others_are_read(call: str) -> None:
    """It is between two others; the driver may know its place still."""
    nvml = Nvml(count=3, lost=call)
    first, lost, last = states_of(nvml)
    assert nvml.open == 0
    assert [(each.index, each.name, each.silent) for each in (first, lost, last)] == [
        (0, "NVIDIA H200", ""),
        (1, "", "GPU is lost"),
        (2, "NVIDIA H200", ""),
    ]
    assert lost.bus_id == ("" if call == "nvmlDeviceGetHandleByIndex" else "0000:3b:00.0")
    (problem,) = problems(lost)
    assert "does not answer: GPU is lost" in problem.found
    assert describe(lost).startswith("it does not answer: GPU is lost")


def test_a_driver_that_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()

    def refuse() -> None:
        raise NvmlError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    with pytest.raises(NvmlMissing, match="does not answer: Driver Not Loaded"):
        states_of(nvml)


def test_without_a_gpu_it_is_said_why() -> None:
    found = try_states()
    # Where these tests run there may be a GPU, a driver without one, or nothing at all.
    assert found if isinstance(found, list) else "pip install" in found or "does not answer" in found


def test_notes_are_about_the_workers_own_gpu() -> None:
    other = msgspec.structs.replace(GOOD, bus_id="0000:86:00.0", ecc=False)
    slow = msgspec.structs.replace(GOOD, throttle_mask=0x04)
    (note,) = notes_about("0000:3b:00.0", [other, slow])
    assert note.startswith("GPU at 0000:3b:00.0: its clocks are held down by its power limit")
    assert notes_about("0000:3b:00.0", [GOOD]) == ()
    assert notes_about("0000:01:00.0", [GOOD]) == ()
    assert notes_about("0000:3b:00.0", "no driver") == (
        "the state of the GPU at 0000:3b:00.0 is not known (no driver)",
    )


def test_places_on_the_bus_are_written_as_linux_does() -> None:
    assert normal_bus_id("00000000:3B:00.0") == "0000:3b:00.0"
    assert normal_bus_id("0001:AF:00.0 ") == "0001:af:00.0"
    assert normal_bus_id("somewhere") == "somewhere"


def test_the_installed_nvml_has_what_it_is_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml", reason="NVML's bindings come with the extra cuda")
    asked = set(re.findall(r"\bnvml[A-Z]\w+|\bNVML_\w+", Path(nvml.__file__).read_text(encoding="utf-8")))
    assert len(asked) > 20
    assert sorted(name for name in asked if not hasattr(pynvml, name)) == []
    reasons = {"SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown"}
    reasons |= {"HwPowerBrakeSlowdown"}
    assert {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in reasons} == set(THROTTLING)


def test_cores_near_a_device_are_what_linux_says(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (device / "local_cpulist").write_text("32-35,96-97\n")
    assert node_of("00000000:3B:00.0", tmp_path) == 1
    assert cores_near("0000:3b:00.0", tmp_path) == {32, 33, 34, 35, 96, 97}
    (device / "numa_node").write_text("-1\n")
    (device / "local_cpulist").write_text("all\n")
    assert node_of("0000:3b:00.0", tmp_path) is None
    assert cores_near("0000:3b:00.0", tmp_path) == frozenset()
    assert cores_near("0000:ff:00.0", tmp_path) == frozenset()
    assert node_of("0000:ff:00.0", tmp_path) is None


def test_core_lists_are_read() -> None:
    assert parse_cores("0-1,5,") == {0, 1, 5}
    assert parse_cores("\n") == frozenset()
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cores("a-b")
