"""What is seen of a GPU while it serves: problems that come and go, numbers, and a device that is lost."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from mainspring.messages.metrics import READINGS
from mainspring.worker.engine import DeviceLost
from mainspring.worker.engines.cuda.monitor import OVER_S, GpuMonitor
from mainspring.worker.engines.cuda.nvml import NvmlMissing, Reader, notes_about
from mainspring.worker.engines.cuda.state import GpuState, Process, readings
from tests.patience import PATIENCE_S
from tests.worker.engines.cuda.test_state import GOOD, Nvml, NvmlError


class States:
    """A reader of given states, one after the other; the last one stays."""

    def __init__(self, *states: GpuState | NvmlMissing) -> None:
        self.states = list(states)
        self.closed = False

    def read(self) -> GpuState:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, NvmlMissing):
            raise state
        return state

    def close(self) -> None:
        self.closed = True


def nothing() -> None:
    """The device answers."""


@pytest.fixture
def watch() -> Iterator[Callable[[States], GpuMonitor]]:
    """Make monitors that look only when a test has them look, and that are stopped at the end."""
    made: list[GpuMonitor] = []

    def monitor(reader: States) -> GpuMonitor:
        made.append(GpuMonitor(reader, nothing, interval_s=1e6))
        return made[-1]

    yield monitor
    for each in made:
        each.stop()


Watch = Callable[[States], GpuMonitor]


def test_a_problem_is_told_with_how_long_it_has_lasted_until_it_is_gone(watch: Watch) -> None:
    held = [msgspec.structs.replace(GOOD, throttle_mask=0x04, sm_clock_mhz=mhz) for mhz in (1500, 1400)]
    monitor = watch(States(GOOD, *held, GOOD))
    monitor.look(10.0)
    assert monitor.health().notes == ()
    monitor.look(11.0)
    (note,) = monitor.health().notes
    assert note.startswith("GPU at 0000:3b:00.0: its clocks are held down by its power limit; ")
    monitor.look(14.0)
    assert "its power limit (for 3 s); " in monitor.health().notes[0]
    monitor.look(15.0)
    assert monitor.health().notes == ()


def test_a_gpu_that_is_now_idle_and_now_busy_is_no_problem(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clocks are not locked."""
    states = [msgspec.structs.replace(GOOD, sm_clock_mhz=mhz, throttle_mask=0x01) for mhz in (345, 1980) * 3]
    monitor = watch(States(*states))
    with caplog.at_level(logging.INFO):
        for second in range(len(states)):
            monitor.look(second)
            assert monitor.health().notes == ()
    assert not caplog.records


def test_the_log_tells_once_of_what_comes_and_goes(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    held = msgspec.structs.replace(GOOD, throttle_mask=0x04)
    reader = States(held, GOOD, held, GOOD)
    monitor = watch(reader)
    with caplog.at_level(logging.INFO):
        for second in (0, 1, 2, 3, OVER_S, OVER_S + 2, OVER_S + 3):
            monitor.look(second)
        reader.states = [held]
        monitor.look(OVER_S + 4)
    told = [(each.levelname, "power limit" in each.getMessage()) for each in caplog.records]
    assert told == [("WARNING", True), ("INFO", False), ("WARNING", True)]
    assert "no longer so that the same kernels take longer" in caplog.records[1].getMessage()


@pytest.mark.parametrize("period_s", [2, 100, 600, 7200])
def test_what_comes_and_goes_with_the_load_is_told_of_seldom(
    watch: Watch, caplog: pytest.LogCaptureFixture, period_s: int
) -> None:
    """Fifty times a GPU is idle and at its power limit in turn."""
    idle = msgspec.structs.replace(GOOD, sm_clock_mhz=345, throttle_mask=0x01)
    busy = msgspec.structs.replace(GOOD, sm_clock_mhz=1500, throttle_mask=0x04)
    reader = States(idle)
    monitor = watch(reader)
    with caplog.at_level(logging.INFO):
        for second in range(0, 100 * period_s, max(1, period_s // 20)):
            reader.states = [busy if second // period_s % 2 else idle]
            monitor.look(float(second))
    levels = [each.levelname for each in caplog.records]
    assert levels == (["WARNING", "INFO"] * len(levels))[: len(levels)]
    most = 1 + 2 * math.ceil(math.log2(max(1, period_s / OVER_S)))
    assert 1 <= len(levels) <= most


def test_a_state_that_can_not_be_read_is_a_note_and_the_next_one_is_read(watch: Watch) -> None:
    monitor = watch(States(NvmlMissing("it does not answer"), GOOD))
    monitor.look(1.0)
    assert "can't be read any more: it does not answer" in monitor.health().notes[0]
    monitor.look(2.0)
    assert monitor.health().notes == ()


def test_a_device_that_does_not_answer_is_lost_for_whoever_asks() -> None:
    def lost() -> None:
        raise DeviceLost("it fell off the bus")

    reader = States(GOOD)
    monitor = GpuMonitor(reader, lost, interval_s=0.001)
    with suppress(DeviceLost):
        monitor.health()
    deadline_s = time.monotonic() + PATIENCE_S
    while not reader.closed and time.monotonic() < deadline_s:
        time.sleep(0.001)
    for _ in range(2):
        with pytest.raises(DeviceLost, match="fell off the bus"):
            monitor.health()
    monitor.stop()


def test_a_monitor_that_is_stopped_gives_the_drivers_back() -> None:
    looked = threading.Event()
    reader = States(GOOD)
    monitor = GpuMonitor(reader, looked.set, interval_s=0.001)
    monitor.health()
    assert looked.wait(PATIENCE_S)
    monitor.stop()
    assert reader.closed


def test_readings_are_those_that_are_known_and_that_the_driver_reports() -> None:
    found = readings(msgspec.structs.replace(GOOD, power_w=312.5, throttle_mask=0x20, xids=(79,)))
    values = {(each.name.removeprefix("mainspring_gpu_"), each.reason): each.value for each in found}
    assert values["sm_clock_hertz", ""] == 1.98e9
    assert values["power_watts", ""] == 312.5
    assert values["throttled", "temperature"] == 1
    assert values["throttled", "power"] == 0
    assert values["xid_errors", ""] == 1
    assert ("remapped_rows", "") not in values
    assert {each.name for each in found} <= READINGS.keys()


class Watched(Nvml):
    """An NVML that tells Xid errors."""

    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self) -> None:
        super().__init__()
        self.xids: list[int] = []

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:  # noqa: N802
        assert (handle, kinds, events) == (100, 8, "events")

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:  # noqa: N802
        assert (events, timeout_ms) == ("events", 0)
        if not self.xids:
            raise NvmlError("time-out")
        return msgspec.defstruct("Event", [("eventData", int)])(self.xids.pop(0))


def test_xid_errors_are_collected_and_processes_left_out() -> None:
    nvml = Watched()
    reader = Reader(nvml, "0000:3b:00.0")
    assert reader.read().xids == ()
    nvml.xids = [31, 79]
    state = reader.read()
    assert (state.xids, state.processes) == ((31, 79), ())
    assert (state.power_w, state.remapped_rows, state.remap_pending) == (312.5, 3, False)
    assert reader.read().xids == (31, 79)
    reader.close()
    assert nvml.open == 0


def test_a_driver_without_events_is_read_without_them() -> None:
    reader = Reader(Nvml(), "0000:3b:00.0")
    assert reader.read().sm_clock_mhz == 345


def test_a_gpu_that_nvml_does_not_have_is_not_watched() -> None:
    nvml = Watched()
    with pytest.raises(NvmlMissing, match="does not answer: Not Found"):
        Reader(nvml, "0000:99:00.0")
    assert nvml.open == 0


def test_what_fails_at_the_start_leaves_nvml_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    for call in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetIndex"):
        for error in (NvmlError("GPU is lost"), KeyboardInterrupt()):
            nvml = Watched()
            monkeypatch.setattr(nvml, call, fail)
            with pytest.raises(NvmlMissing if isinstance(error, NvmlError) else KeyboardInterrupt):
                Reader(nvml, "0000:3b:00.0")
            assert nvml.open == 0


def test_only_the_workers_own_gpu_is_asked_and_never_for_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = Watched()
    for call in ("nvmlDeviceGetCount", "nvmlDeviceGetComputeRunningProcesses"):
        monkeypatch.setattr(nvml, call, lambda *_: pytest.fail("it was asked"), raising=False)
    assert Reader(nvml, "0000:3b:00.0").read().processes == ()


def test_only_who_used_it_before_is_told_at_the_start_of_a_gpu_that_is_watched() -> None:
    state = msgspec.structs.replace(GOOD, ecc=False, processes=(Process(77, 1 << 30),))
    (note,) = notes_about(GOOD.bus_id, [state], watched=True)
    assert "processes use it: 77" in note
    assert len(notes_about(GOOD.bus_id, [state])) == 2
