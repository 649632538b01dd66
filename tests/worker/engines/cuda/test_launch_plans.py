"""Launch plans as graphs: final addresses, one launch, graphs used again, and the way without them."""

from __future__ import annotations

import ctypes

import msgspec
import numpy as np
import pytest

from mainspring.compiler.artifact.plan import Plans
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanBound, LaunchPlanProgram, choose_image
from mainspring.worker.engines.cuda.memory import MIB, DeviceMemory, Wanted
from mainspring.worker.engines.cuda.operands import Arguments, Desk, Operands
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.fake_driver import FakeDriver

PAGES = 8


class Bench:
    """A device with one program, and weights in its pages without a LOAD."""

    def __init__(self) -> None:
        self.driver = FakeDriver(kernels=dict(tiny.KERNELS))
        self.driver.attach()
        self.memory = DeviceMemory(self.driver, Wanted(MIB, MIB, MIB, PAGES))
        self.program = LaunchPlanProgram(
            self.driver, self.memory, tiny.PLANS, b"", tiny.TENSORS, tiny.LAYOUTS
        )
        self.stream, self.binding = self.driver.stream(), self.driver.stream()
        self.done = self.driver.event()

    def bind(self, weights: bytes, pages: tuple[int, int]) -> LaunchPlanBound:
        for position, page in enumerate(pages):
            piece = weights[position << 24 : (position + 1) << 24]
            ctypes.memmove(self.memory.page(page), piece, len(piece))
        return self.program.bind([self.memory.page(page) for page in pages], self.binding)

    def run(self, bound: LaunchPlanBound, x: tiny.Floats, slot: int) -> tiny.Floats:
        rows, layout = len(x), tiny.LAYOUTS[len(x)]
        address = self.memory.io + slot
        tiny.floats(address, x.size)[:] = x.reshape(-1)
        bound.launch(rows, address, layout, self.stream)
        self.driver.record(self.done, self.stream)
        self.driver.synchronize(self.done)
        return tiny.floats(address + layout.outputs[0], x.size).reshape(x.shape).copy()


def rows(count: int) -> tiny.Floats:
    return np.random.default_rng(count).standard_normal((count, tiny.WIDTH), np.float32)


@pytest.mark.parametrize("graphs_break", [False, True])
def test_outputs_are_those_of_the_model_wherever_its_pages_and_slots_are(graphs_break: bool) -> None:
    bench = Bench()
    bench.driver.graphs_break = graphs_break
    models = {pages: tiny.weights_file(sum(pages)) for pages in ((0, 1), (7, 2), (3, 6))}
    bound = {pages: bench.bind(weights, pages) for pages, weights in models.items()}
    for slot, (pages, weights) in enumerate(models.items()):
        for count in tiny.SIZES:
            x = rows(count)
            found = bench.run(bound[pages], x, slot * 4096)
            np.testing.assert_allclose(found, tiny.expected(weights, x), rtol=1e-6)


def test_exec_is_one_launch_and_the_kernels_follow_each_other() -> None:
    bench = Bench()
    bound = bench.bind(tiny.weights_file(1), (0, 1))
    bench.driver.calls.clear()
    bench.run(bound, rows(2), 0)
    assert bench.driver.calls == ["copy", "launch_graph", "copy", "record", "synchronize"]
    kernels = bench.driver.find("kernel")
    assert [work.what for work in kernels] == ["kernel multiply_2", "kernel add_2"]
    assert kernels[1].begin_ns == kernels[0].end_ns


def test_without_graphs_kernels_are_launched_one_by_one_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.driver.graphs_break = True
    bound = bench.bind(tiny.weights_file(1), (0, 1))
    bench.bind(tiny.weights_file(1), (2, 3))
    bench.driver.calls.clear()
    bench.run(bound, rows(1), 0)
    assert bench.driver.calls.count("launch") == 2
    assert [record.getMessage() for record in caplog.records] == [
        "kernels are launched one by one, because no graph can be made: GPU 0: operation not supported"
    ]


def test_models_that_come_and_go_allocate_nothing() -> None:
    bench = Bench()
    first = bench.bind(tiny.weights_file(1), (0, 1))
    bench.program.retire(first)
    before = list(bench.driver.allocations)
    for seed in range(5):
        weights = tiny.weights_file(seed)
        bound = bench.bind(weights, (seed + 2, seed + 1))
        x = rows(2)
        np.testing.assert_allclose(bench.run(bound, x, 0), tiny.expected(weights, x), rtol=1e-6)
        bench.program.retire(bound)
    assert bench.driver.allocations == before
    assert bench.driver.calls.count("update") == 5 * len(tiny.SIZES)


def test_the_pages_of_a_model_that_left_need_nothing_done() -> None:
    bench = Bench()
    for pages in ((0, 1), (2, 3)):
        bench.program.retire(bench.bind(tiny.weights_file(1), pages))
    bench.driver.calls.clear()
    weights = tiny.weights_file(7)
    bound = bench.bind(weights, (2, 3))
    assert bench.driver.calls == []
    x = rows(2)
    np.testing.assert_allclose(bench.run(bound, x, 0), tiny.expected(weights, x), rtol=1e-6)


def test_a_graph_that_can_not_be_given_new_arguments_is_made_anew() -> None:
    bench = Bench()
    bench.program.retire(bench.bind(tiny.weights_file(1), (0, 1)))
    bench.driver.updates_fail = True
    weights = tiny.weights_file(2)
    bound = bench.bind(weights, (4, 5))
    x = rows(1)
    np.testing.assert_allclose(bench.run(bound, x, 0), tiny.expected(weights, x), rtol=1e-6)
    bench.program.retire(bound)
    bench.program.close()
    bench.memory.close()
    assert not bench.driver.leaks


def test_warming_makes_the_graphs_of_the_first_load_and_launches_nothing() -> None:
    bench = Bench()
    bench.program.warm([bench.memory.page(0), bench.memory.page(1)], bench.binding)
    before = list(bench.driver.allocations)
    bench.bind(tiny.weights_file(1), (2, 3))
    assert bench.driver.allocations == before
    assert not bench.driver.find("kernel")


def test_a_failing_launch_ends_the_capture_and_falls_back() -> None:
    bench = Bench()
    bench.driver.fails["launch"] = RuntimeError("too many resources requested for launch")
    bound = bench.bind(tiny.weights_file(1), (0, 1))
    bench.driver.fails.clear()
    weights = tiny.weights_file(1)
    np.testing.assert_allclose(bench.run(bound, rows(1), 0), tiny.expected(weights, rows(1)), rtol=1e-6)
    assert "graphs" not in bench.driver.leaks


def test_a_lost_device_is_no_reason_to_fall_back() -> None:
    bench = Bench()
    bench.driver.fails["begin_capture"] = DeviceLost("an illegal memory access was encountered")
    with pytest.raises(DeviceLost):
        bench.bind(tiny.weights_file(1), (0, 1))


def test_a_plan_that_needs_more_workspace_is_refused_with_the_remedy() -> None:
    driver = FakeDriver(kernels=dict(tiny.KERNELS))
    driver.attach()
    memory = DeviceMemory(driver, Wanted(512, MIB, MIB, PAGES))
    with pytest.raises(EngineError, match=r"needs 704 bytes of workspace.*has 512.*workspace_bytes"):
        LaunchPlanProgram(driver, memory, tiny.PLANS, b"", tiny.TENSORS, tiny.LAYOUTS)
    assert "modules" not in driver.leaks


def test_a_kernel_that_is_missing_names_itself() -> None:
    driver = FakeDriver()
    driver.attach()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, PAGES))
    with pytest.raises(RuntimeError, match="multiply_1"):
        LaunchPlanProgram(driver, memory, tiny.PLANS, b"", tiny.TENSORS, tiny.LAYOUTS)
    assert "modules" not in driver.leaks


def test_numbers_are_passed_in_the_first_bytes_of_their_place() -> None:
    first = tiny.plan(1).launches[0]
    launch = msgspec.structs.replace(first, arguments=(7, -1, 0.5, *first.arguments[:1]))
    plan = msgspec.structs.replace(tiny.plan(1), launches=(launch,))
    arguments = Arguments(
        Operands(plan, tiny.TENSORS, Desk(tiny.layout(1), 4096, 8192)).values([1 << 30, 2 << 30])
    )
    pointers = (ctypes.c_uint64 * 4).from_address(arguments.address(0))
    assert ctypes.c_int32.from_address(pointers[0]).value == 7
    assert ctypes.c_int64.from_address(pointers[1]).value == -1
    assert ctypes.c_int32.from_address(pointers[1]).value == -1
    assert ctypes.c_float.from_address(pointers[2]).value == 0.5
    assert ctypes.c_uint64.from_address(pointers[3]).value == 4096


@pytest.mark.parametrize(
    ("arch", "stored"),
    [("sm_90", True), ("sm_80", False), ("sm_100", False), ("sm_86", False), ("sm_90a", True)],
)
def test_stored_machine_code_is_used_where_it_runs(arch: str, stored: bool) -> None:
    driver = FakeDriver()
    driver.attach()
    plans = msgspec.structs.replace(tiny.PLANS, arch=arch)
    found = choose_image(driver, plans, b"code", "source")
    assert found == (b"code" if stored else b"sm_90 of source")


def test_older_code_of_the_same_family_runs_and_newer_does_not() -> None:
    driver = FakeDriver()
    driver.attach()
    for device, runs in (("sm_89", True), ("sm_80", False), ("sm_90", False)):
        driver.arch = lambda name=device: name  # type: ignore[method-assign, misc]
        plans = msgspec.structs.replace(tiny.PLANS, arch="sm_86")
        assert (choose_image(driver, plans, b"code", "source") == b"code") is runs


def test_code_is_compiled_where_none_was_stored_and_refused_for_the_cpu() -> None:
    driver = FakeDriver()
    driver.attach()
    assert choose_image(driver, tiny.PLANS, None, "source") == b"sm_90 of source"
    cpu: Plans = msgspec.structs.replace(tiny.PLANS, target="cpu")
    with pytest.raises(EngineError, match="for cpu"):
        choose_image(driver, cpu, None, "source")
