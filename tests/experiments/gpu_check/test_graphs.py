"""``graphs`` finds a graph that is slower than its kernels, and not kernels that are slower from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainspring.experiments.gpu_check import graphs
from mainspring.experiments.gpu_check.graphs import COUNTED, check_graphs
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import State, Verdict
from mainspring.worker.engines.cuda.driver import MemoryState
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from tests.worker.engines.cuda import tiny_plans as tiny

KERNELS = dict(tiny.KERNELS)
Gpu = Callable[[FakeDriver], Settings]


class SlowGraphs(FakeDriver):
    """Each launch of a graph takes 5 us before its first kernel."""

    def launch_graph(self, executable: int, stream: int) -> None:
        self.busy(stream, 5_000)
        super().launch_graph(executable, stream)


class Cached(FakeDriver):
    """A kernel that was launched just before finds its weights in a cache, and takes half as long."""

    before = 0

    def launch(self, function: int, *more: Any) -> None:
        again, self.before = function == self.before, function
        self.kernels = {
            name: kernel._replace(duration_ns=kernel.duration_ns // (2 if again else 1))
            for name, kernel in KERNELS.items()
        }
        super().launch(function, *more)


class Remembering(FakeDriver):
    """Each graph that is ready to launch takes 20 KiB of the memory."""

    def memory(self) -> MemoryState:
        free_bytes, total_bytes = super().memory()
        return MemoryState(free_bytes - (20 << 10) * len(self._executables), total_bytes)


def found_on(gpu: Gpu, driver: FakeDriver) -> dict[str, Verdict]:
    """Return the lines of the smallest batch size."""
    found = [*check_graphs(gpu(driver))]
    assert len(found) == 2 * 5
    assert not driver._executables, "graphs are left"
    return {verdict.what.strip().partition(",")[0]: verdict for verdict in found[:5]}


JUDGED = "EXEC by graph launch above its kernels"


def test_a_graph_takes_what_its_kernels_take(gpu: Gpu) -> None:
    found = found_on(gpu, FakeDriver(4 << 30, dict(KERNELS)))
    assert (found[JUDGED].state, found[JUDGED].found) == (State.MET, "0 %")
    assert found["graph; its kernels; each again and again"].found == "0.0500, 0.0500, 0.0500"
    assert found["longest kernels"].found == "add_1 30.0 us, multiply_1 20.0 us"


def test_a_slow_graph_is_found(gpu: Gpu) -> None:
    found = found_on(gpu, SlowGraphs(4 << 30, dict(KERNELS)))
    assert (found[JUDGED].state, found[JUDGED].found) == (State.MISSED, "10 %")


def test_weights_that_lie_in_the_cache_raise_no_alarm(gpu: Gpu) -> None:
    found = found_on(gpu, Cached(4 << 30, dict(KERNELS)))
    assert (found[JUDGED].state, found[JUDGED].found) == (State.MET, "0 %")
    assert found["graph; its kernels; each again and again"].found == "0.0500, 0.0500, 0.0250"


def test_the_graph_is_the_one_that_is_served(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two events that serving reads: they may cost the driver's fast path."""
    made: list[FakeDriver] = []

    def program(driver: Any, *more: Any) -> Any:
        made.append(driver)
        assert len(more) == 6
        assert more[-1] is not None
        return launch_plan_program(driver, *more)

    launch_plan_program = LaunchPlanProgram
    monkeypatch.setattr(graphs, "LaunchPlanProgram", program)
    driver = FakeDriver(4 << 30, dict(KERNELS))
    found_on(gpu, driver)
    assert made
    assert driver.calls.count("record_at_launch") == 2 * len(tiny.SIZES)


def test_what_graphs_take_of_the_memory_is_told(gpu: Gpu) -> None:
    found = found_on(gpu, Remembering(4 << 30, dict(KERNELS)))
    line = found["memory of a graph"]
    assert line.found == "20.0 KiB"
    assert line.note == f"10240 bytes for each kernel, of {COUNTED} graphs"
    assert len(found["capture"].found.split(", ")) == 4
