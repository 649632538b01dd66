"""A graph against its kernels, on a GPU that is not there: kernels take the time that they are said to."""

from __future__ import annotations

from typing import Any

from mainspring.experiments.gpu_check.graphs import ROUNDS, NotingDriver, Spans, measure, verdicts
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import MIB, DeviceMemory, Wanted
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.fake_driver import FakeDriver

MULTIPLY_NS, ADD_NS = 20_000, 30_000


def bench() -> tuple[Any, LaunchPlanProgram, DeviceMemory]:
    driver: Any = NotingDriver(FakeDriver(kernels=dict(tiny.KERNELS)))
    driver.attach()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, 2))
    return driver, LaunchPlanProgram(driver, memory, tiny.PLANS, b"", tiny.TENSORS, tiny.LAYOUTS), memory


def test_a_graph_takes_what_its_kernels_take() -> None:
    driver, program, memory = bench()
    for size in tiny.SIZES:
        spans = measure(driver, program, memory, size, 5)
        assert spans == Spans(MULTIPLY_NS + ADD_NS, (MULTIPLY_NS, ADD_NS))
    judged, explained = verdicts("tiny, batch 1", spans)
    assert (judged.state, judged.note) == (State.MET, "2 kernels")
    assert explained.found == "0.0500, 0.0500"


def test_a_long_kernel_is_repeated_less_often() -> None:
    """A model of many takes minutes else, at no gain: the clock is a thousand times finer."""
    driver, program, memory = bench()
    driver.kernels["multiply_2"] = driver.kernels["multiply_2"]._replace(duration_ns=400_000)
    spans = measure(driver, program, memory, 2, 20)
    assert spans.kernels == (400_000, ADD_NS)
    assert len(driver.find("kernel multiply_2")) == (ROUNDS + 1) * (1 + 1 + 2 + 4)
    assert len(driver.find("kernel add_2")) == (ROUNDS + 1) * (1 + 1 + 17 + 34)


def test_noting_launches_nothing() -> None:
    driver, program, memory = bench()
    bound: Any = program.bind([memory.page(0), memory.page(1)], driver.stream())
    driver.noted = []
    bound.compute_one_by_one(2, driver.stream())
    assert len(driver.noted) == 2
    assert not driver.find("kernel")


def test_time_between_kernels_is_judged() -> None:
    assert verdicts("x", Spans(101.9, (50.0, 50.0)))[0].state is State.MET
    assert verdicts("x", Spans(102.1, (50.0, 50.0)))[0].state is State.MISSED


def test_nothing_is_left_on_the_device() -> None:
    driver, program, memory = bench()
    measure(driver, program, memory, 1, 3)
    program.close()
    memory.close()
    assert not driver.leaks
