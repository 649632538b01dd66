"""Drivers whose times are wrong in a known way: each check has to find it. The clock is the device's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from mainspring.cli.profiling.lone_device import LoneDevice, device_for
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check import executing, gaps
from mainspring.experiments.gpu_check.allocations import check_allocations
from mainspring.experiments.gpu_check.loading import check_loading
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import TVM, Settings
from mainspring.experiments.gpu_check.steady import check_steadiness
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.messages.model import ModelSpec
from mainspring.worker.engines.cuda.driver import Copy
from tests.experiments.gpu_check.conftest import MAIN
from tests.worker.engines.cuda import tiny_plans as tiny

Gpu = Callable[[FakeDriver], Settings]
EXEC_NS = 50_000
"""The device's part of a batch of the model."""


class Right(FakeDriver):
    """Nothing is wrong; calls take no time of the host."""

    def __init__(self) -> None:
        super().__init__(4 << 30, dict(tiny.KERNELS))


class SlowChunks(Right):
    """The host takes 20 us for each copy of less than the whole model."""

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        if size < tiny.WEIGHTS_BYTES:
            self.now_ns += 20_000
        super().copy(target, source, size, kind, stream)


class SlowAfterAnother(Right):
    """A graph takes 10 us longer after another one."""

    before = 0

    def launch_graph(self, executable: int, stream: int) -> None:
        if executable != self.before:
            self.busy(stream, 10_000)
        self.before = executable
        super().launch_graph(executable, stream)


class SlowLaunch(Right):
    """The host takes 30 us to launch a graph."""

    def launch_graph(self, executable: int, stream: int) -> None:
        self.now_ns += 30_000
        super().launch_graph(executable, stream)


class SlowBegin(Right):
    """The device takes 30 us before it begins a graph."""

    def launch_graph(self, executable: int, stream: int) -> None:
        self.busy(stream, 30_000)
        super().launch_graph(executable, stream)


class SlowAfterQuiet(Right):
    """After 200 ms with nothing to do, the clocks are down: a graph takes 150 us longer."""

    launched_ns = 0

    def launch_graph(self, executable: int, stream: int) -> None:
        if self.now_ns - self.launched_ns > 200_000_000:
            self.busy(stream, 3 * EXEC_NS)
        super().launch_graph(executable, stream)
        self.launched_ns = self.now_ns

    def clear(self, address: int, size: int, stream: int) -> None:
        super().clear(address, size, stream)
        self.launched_ns = self.now_ns


class Stutters(Right):
    """Every 25th launch of a graph takes the host 100 us."""

    launches = 0

    def launch_graph(self, executable: int, stream: int) -> None:
        self.launches += 1
        if self.launches % 25 == 0:
            self.now_ns += 100_000
        super().launch_graph(executable, stream)


class Leaks(Right):
    """Each launch of a graph takes 4 KiB of memory that nobody asks for."""

    def launch_graph(self, executable: int, stream: int) -> None:
        self.allocate(4096)
        super().launch_graph(executable, stream)


@pytest.fixture
def virtual(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeDriver], Settings]:
    """Return settings for a driver, by whose clock the host measures and sleeps."""

    def put_in(driver: FakeDriver) -> Settings:
        def sleep(seconds: float) -> None:
            driver.now_ns += round(seconds * 1e9)

        monkeypatch.setattr(time, "monotonic_ns", lambda: driver.now_ns)
        monkeypatch.setattr(executing, "sleep", sleep)
        return gpu(driver)

    return put_in


@contextmanager
def resident(settings: Settings) -> Iterator[tuple[LoneDevice, ModelSpec]]:
    """Yield a device and the main model, which is loaded."""
    spec = Store(settings.store(TVM)).manifest(MAIN).spec()
    with device_for([spec], settings.config()) as device:
        device.prepare(spec)
        device.load(spec)
        yield device, spec


@pytest.mark.parametrize(("driver", "state"), [(Right, State.MET), (SlowChunks, State.MISSED)])
def test_a_load_that_is_slower_than_its_copies(virtual: Gpu, driver: type[Right], state: State) -> None:
    judged, *_ = check_loading(virtual(driver()))
    assert judged.state is state, judged.found


@pytest.mark.parametrize(
    ("driver", "state", "found"), [(Right, State.MET, "0 %"), (SlowAfterAnother, State.MISSED, "20 %")]
)
def test_a_batch_that_is_slower_after_another_size(
    virtual: Gpu, driver: type[Right], state: State, found: str
) -> None:
    with resident(virtual(driver())) as (device, spec):
        judged, alone = executing.of_sizes(device, spec, 10)
    shares = [float(each) for each in alone.found.split(", ")]
    assert all(EXEC_NS / 1e6 <= each < 1.1 * EXEC_NS / 1e6 for each in shares)
    assert judged.state is state
    assert abs(float(judged.found.split()[0]) - float(found.split(maxsplit=1)[0])) < 1.5


@pytest.mark.parametrize(
    ("driver", "more_us", "state"),
    [(Right, 0, State.MET), (SlowLaunch, 30, State.MET), (SlowBegin, 30, State.MISSED)],
)
def test_the_gap_between_execs(virtual: Gpu, driver: type[Right], more_us: int, state: State) -> None:
    """What the host takes is hidden if the device has the next one, what the device takes is not."""
    with resident(virtual(driver())) as (device, spec):
        told, judged = gaps.of_gaps(device, spec, 10)
    assert judged.state is state, judged.found
    # The kernel that writes the table of addresses and the copy of the input precede the device's part.
    assert more_us <= float(told.found.split()[0]) < more_us + 5


@pytest.mark.parametrize(("driver", "first"), [(Right, "1.00"), (SlowAfterQuiet, "3.")])
def test_the_first_exec_after_a_pause(virtual: Gpu, driver: type[Right], first: str) -> None:
    with resident(virtual(driver())) as (device, spec):
        (told,) = executing.of_pauses(device, spec, (1, 1_000))
    short, long = told.found.split(", ")
    assert short == "1.00"
    assert long.startswith(first)


def test_whether_heartbeats_in_a_pause_keep_the_device_awake(virtual: Gpu) -> None:
    with resident(virtual(SlowAfterQuiet())) as (device, spec):
        told, beat = executing.of_beats(device, spec, (1, 1_000, 5_000))
        assert told.what == "first EXEC after 1000, 5000 ms of quiet, a heartbeat every 100 ms meanwhile"
        assert told.found == "1.00, 1.00"
        assert beat.found.endswith(" us")
        assert not executing.of_beats(device, spec, (1,))


@pytest.mark.parametrize(("driver", "state"), [(Right, State.MET), (Stutters, State.MISSED)])
def test_a_tail_that_only_the_host_sees(
    virtual: Gpu, monkeypatch: pytest.MonkeyPatch, driver: type[Right], state: State
) -> None:
    @contextmanager
    def alone(*_: object) -> Iterator[list[int]]:
        yield []

    # Its LOADs run in a thread of their own, whose waiting would move the one clock.
    monkeypatch.setattr("mainspring.experiments.gpu_check.steady.loading_beside", alone)
    judged, spans, parts = check_steadiness(msgspec.structs.replace(virtual(driver()), infers=60))
    assert judged.state is state, judged.found
    assert len({*parts.found.split(", ")}) == 1, "the device's part is always the same"
    assert (len({*spans.found.split(", ")}) == 1) == (state is State.MET)


@pytest.mark.parametrize(("driver", "state"), [(Right, State.MET), (Leaks, State.MISSED)])
def test_memory_that_the_driver_takes_for_itself(gpu: Gpu, driver: type[Right], state: State) -> None:
    calls, memory, _ = check_allocations(gpu(driver()))
    assert (calls.state, memory.state) == (State.MET, state)
