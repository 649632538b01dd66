"""Variants of kernels on a GPU: the recording driver and a libcuda of C load, launch and time them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator

import msgspec
import pytest

from mainspring.compiler.artifact.plan import (
    PLAN_FORMATS,
    Launch,
    LaunchPlan,
    Operand,
    Plans,
    Timed,
    TimerFailed,
    Trial,
)
from mainspring.compiler.choosing.tuning import Subject, fastest
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda import timing
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.libcuda_driver import LibcudaDriver
from mainspring.worker.engines.cuda.timing import Bench
from tests.worker.engines.cuda import fake_libcuda
from tests.worker.engines.cuda.fake_libcuda import IMAGE, FakeLibcuda

REPEATED = 3
NS = {"slow": 50_000, "fast": 20_000, "faster": 10_000}
SHAPE = (16,)
READ, WRITTEN = (Operand("workspace", 0, at, 64, "float32", SHAPE, at > 0) for at in (0, 256))
READ_BY: dict[str, list[int]] = {}


def kernel(name: str) -> Kernel:
    def run(source: int, target: int) -> None:
        READ_BY.setdefault(name, []).append(target - source)

    return Kernel(run, NS[name], 2, placed=True)


def plan(number: int, name: str) -> LaunchPlan:
    return LaunchPlan(number, 512, (Launch(name, (READ, WRITTEN), (4, 1, 1), (32, 1, 1)),) * REPEATED)


PLANS = Plans("cuda", "sm_90", "", {}, tuple(map(plan, (1, 2, 3), NS)), PLAN_FORMATS["cuda"])
ORDER = (2, 1, 3, 3, 2, 1)


@pytest.fixture(params=["fake", "libcuda"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    READ_BY.clear()
    kernels = {name: kernel(name) for name in NS}
    if request.param == "fake":
        yield FakeDriver(kernels=kernels)
        return
    if fake_libcuda.COMPILER is None:
        pytest.skip("a C compiler makes the library")
    monkeypatch.setenv(drivers.LIBCUDA, fake_libcuda.library())
    cuda = FakeLibcuda()
    for name, each in kernels.items():
        cuda.add_kernel(name, each)
    made = LibcudaDriver(0)
    yield made
    made.close()


def test_each_run_takes_its_variant_s_time_and_arrays_have_places(driver: Driver) -> None:
    bench = Bench(driver)
    found = bench.run(Trial(PLANS, IMAGE, ORDER))
    # An event of libcuda has half a microsecond's resolution, and floats of milliseconds.
    names = [*NS]
    wanted = [REPEATED * NS[names[number - 1]] for number in ORDER]
    assert found == pytest.approx(wanted, abs=1_000)
    assert {name: set(places) for name, places in READ_BY.items()} == {name: {256} for name in NS}
    # Once to warm up, and as often as the order has it.
    assert {name: len(places) for name, places in READ_BY.items()} == dict.fromkeys(NS, 3 * REPEATED)


def test_the_search_finds_the_fastest_on_the_device(driver: Driver) -> None:
    bench = Bench(driver)
    subject = Subject("k", 1.0, [(1,), (2,), (3,)], lambda _: Trial(PLANS, IMAGE))
    assert fastest(subject, bench.run)[0] == (3,)


def test_trials_leave_nothing_behind() -> None:
    driver = FakeDriver(kernels={name: kernel(name) for name in NS})
    bench = Bench(driver)
    bench.run(Trial(PLANS, IMAGE, ORDER))
    assert not driver.leaks
    driver.kernels.pop("fast")
    with pytest.raises(RuntimeError, match="fast"):
        bench.run(Trial(PLANS, IMAGE, ORDER))
    assert not driver.leaks
    driver.fails["allocate"] = EngineError("out of memory")
    with pytest.raises(EngineError, match="out of memory"):
        bench.run(Trial(PLANS, IMAGE, ORDER))
    assert not driver.leaks


def answers(
    driver: FakeDriver, trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[Timed]]:
    """Return the exit code and the answers of the process, run in this one."""
    reading, writing = os.pipe()
    monkeypatch.setattr(timing, "open_driver", lambda _: driver)
    monkeypatch.setattr(os, "dup", lambda _: writing)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in trials)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    code = timing.main()
    with os.fdopen(reading, "rb") as stream:
        return code, [msgspec.json.decode(line, type=Timed) for line in stream]


def test_a_trial_that_fails_is_answered_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(kernels={name: kernel(name) for name in NS})
    unknown = msgspec.structs.replace(PLANS, plans=(LaunchPlan(1, 512, (Launch("unknown", ()),)),))
    code, (first, second) = answers(
        driver, [Trial(unknown, IMAGE, (1,)), Trial(PLANS, IMAGE, (3,))], monkeypatch
    )
    assert (code, first.ns, second.ns) == (0, (), (REPEATED * NS["faster"],))
    assert "unknown" in first.failed


def test_a_lost_device_ends_the_process_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(kernels={name: kernel(name) for name in NS})
    driver.fails["launch_graph"] = DeviceLost("an illegal memory access was encountered")
    code, found = answers(driver, [Trial(PLANS, IMAGE, (1,))] * 2, monkeypatch)
    assert code == 1
    assert found == [Timed(failed="an illegal memory access was encountered")]


def test_the_compiler_s_side_starts_a_process_and_says_why_it_can_not_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = msgspec.json.encode(Timed((5, 7))).decode()
    echo = f"import sys\nfor _ in sys.stdin: print('{answer}', flush=True)"
    monkeypatch.setattr(timing, "PROGRAM", (sys.executable, "-c", echo))
    with timing.GpuTimer() as timer:
        assert timer(Trial(PLANS, IMAGE, (1, 2))) == timer(Trial(PLANS, IMAGE, (1, 2))) == (5, 7)
    monkeypatch.setattr(timing, "PROGRAM", (sys.executable, "-c", "raise SystemExit('no GPU here')"))
    with timing.GpuTimer() as timer, pytest.raises(TimerFailed, match="ended: no GPU here"):
        timer(Trial(PLANS, IMAGE, (1, 2)))
    monkeypatch.setattr(timing, "PROGRAM", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(timing, "TIMEOUT_S", 0.1)
    with timing.GpuTimer() as timer, pytest.raises(TimerFailed, match="not done after"):
        timer(Trial(PLANS, IMAGE, (1, 2)))
