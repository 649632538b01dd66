"""Launch plans as graphs: one for all models and places, made once; and the way without them."""

from __future__ import annotations

import ctypes

import msgspec
import numpy as np
import pytest

from mainspring.compiler.artifact.plan import (
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    FIRST_PAGE_ENTRY,
    SLOT_ENTRY,
    Shape,
    place,
)
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanBound, LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import MIB, DeviceMemory, Wanted
from mainspring.worker.engines.cuda.operands import AddressTable, Arguments, entries
from tests.worker.engines.cuda import tiny_plans as tiny

PAGES = 8


class Bench:
    """A device with one program, and weights in its pages without a LOAD."""

    def __init__(self) -> None:
        self.driver = FakeDriver(kernels=dict(tiny.KERNELS))
        self.driver.attach()
        self.memory = DeviceMemory(self.driver, Wanted(MIB, MIB, MIB, PAGES))
        self.program = LaunchPlanProgram(self.driver, self.memory, tiny.PLANS, b"", tiny.TENSORS, tiny.SHAPES)
        self.stream, self.preparing = self.driver.stream(), self.driver.stream()
        self.done = self.driver.event()

    def bind(self, weights: bytes, pages: tuple[int, int]) -> LaunchPlanBound:
        for position, page in enumerate(pages):
            piece = weights[position << 24 : (position + 1) << 24]
            ctypes.memmove(self.memory.page(page), piece, len(piece))
        return self.program.bind([self.memory.page(page) for page in pages])

    def warm(self) -> None:
        self.program.warm((), self.preparing)

    def run(self, bound: LaunchPlanBound, x: tiny.Floats, slot: int) -> tiny.Floats:
        rows, layout = len(x), tiny.LAYOUTS[len(x)]
        address = self.memory.io + slot
        tiny.floats(address, x.size)[:] = x.reshape(-1)
        bound.launch(Shape(rows), address, layout, self.stream)
        self.driver.record(self.done, self.stream)
        self.driver.synchronize(self.done)
        return tiny.floats(address + layout.outputs[0], x.size).reshape(x.shape).copy()


def rows(count: int) -> tiny.Floats:
    return np.random.default_rng(count).standard_normal((count, tiny.WIDTH), np.float32)


@pytest.mark.parametrize("graphs_break", [False, True])
def test_outputs_are_those_of_the_model_wherever_its_pages_and_slots_are(graphs_break: bool) -> None:
    bench = Bench()
    bench.driver.graphs_break = graphs_break
    bench.warm()
    models = {pages: tiny.weights_file(sum(pages)) for pages in ((0, 1), (7, 2), (3, 6))}
    bound = {pages: bench.bind(weights, pages) for pages, weights in models.items()}
    for slot, (pages, weights) in enumerate(models.items()):
        for count in tiny.SIZES:
            x = rows(count)
            found = bench.run(bound[pages], x, slot * 4096)
            np.testing.assert_allclose(found, tiny.expected(weights, x), rtol=1e-6)


def test_exec_writes_the_addresses_and_launches_its_graph() -> None:
    bench = Bench()
    bench.warm()
    bound = bench.bind(tiny.weights_file(1), (0, 1))
    bench.driver.calls.clear()
    bench.run(bound, rows(2), 0)
    assert bench.driver.calls == ["launch", "launch_graph", "record", "synchronize"]
    assert not bench.driver.find("copy")
    kernels = bench.driver.find("kernel")
    assert [work.what for work in kernels] == ["kernel multiply_2", "kernel add_2"]
    assert kernels[1].begin_ns == kernels[0].end_ns


def test_without_graphs_kernels_are_launched_one_by_one_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.driver.graphs_break = True
    bench.warm()
    bound = bench.bind(tiny.weights_file(1), (0, 1))
    bench.driver.calls.clear()
    bench.run(bound, rows(1), 0)
    assert bench.driver.calls.count("launch") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "kernels are launched one by one, because no graph can be made: GPU 0: operation not supported"
    ]


def test_there_is_one_graph_for_each_batch_size_however_many_models_there_are() -> None:
    bench = Bench()
    bench.warm()
    assert bench.driver.calls.count("instantiate") == bench.driver.calls.count("upload") == len(tiny.SIZES)
    bench.driver.calls.clear()
    allocations = list(bench.driver.allocations)
    models = [(bench.bind(tiny.weights_file(seed), (seed, 7 - seed)), seed) for seed in range(4)]
    assert bench.driver.calls == [], "the device was asked for something"
    for bound, seed in (*models, *models):
        x = rows(2)
        expected = tiny.expected(tiny.weights_file(seed), x)
        np.testing.assert_allclose(bench.run(bound, x, seed * 4096), expected, rtol=1e-6)
    assert bench.driver.allocations == allocations
    assert {*bench.driver.calls} == {"launch", "launch_graph", "record", "synchronize"}


def test_addresses_that_the_host_has_changed_reach_only_later_batches() -> None:
    """The driver copies them when they are given, so the next batch's may be written while one waits."""
    bench = Bench()
    bench.warm()
    weights = tiny.weights_file(3)
    bound = bench.bind(weights, (5, 1))
    inputs = [rows(2) + slot for slot in range(3)]
    layout = tiny.LAYOUTS[2]
    for slot, x in enumerate(inputs):
        address = bench.memory.io + slot * 4096
        tiny.floats(address, x.size)[:] = x.reshape(-1)
        bound.launch(Shape(2), address, layout, bench.stream)
    bench.driver.run_all()
    for slot, x in enumerate(inputs):
        found = tiny.floats(bench.memory.io + slot * 4096 + layout.outputs[0], x.size).reshape(x.shape)
        np.testing.assert_allclose(found, tiny.expected(weights, x), rtol=1e-6)


def test_warming_launches_nothing_and_closing_gives_all_back() -> None:
    bench = Bench()
    bench.warm()
    assert not bench.driver.find("kernel")
    bench.program.close()
    bench.memory.close()
    assert not bench.driver.leaks


@pytest.mark.parametrize("call", ["launch", "instantiate", "upload"])
def test_a_graph_that_can_not_be_made_leaves_nothing_behind(call: str) -> None:
    bench = Bench()
    bench.driver.fails[call] = RuntimeError("too many resources requested for launch")
    bench.warm()
    bench.driver.fails.clear()
    weights = tiny.weights_file(1)
    bound = bench.bind(weights, (0, 1))
    np.testing.assert_allclose(bench.run(bound, rows(1), 0), tiny.expected(weights, rows(1)), rtol=1e-6)
    assert not {"graphs", "executables"} & {*bench.driver.leaks}


def test_a_lost_device_is_no_reason_to_fall_back() -> None:
    bench = Bench()
    bench.driver.fails["begin_capture"] = DeviceLost("an illegal memory access was encountered")
    with pytest.raises(DeviceLost):
        bench.warm()


def test_a_plan_that_needs_more_workspace_is_refused_with_the_remedy() -> None:
    driver = FakeDriver(kernels=dict(tiny.KERNELS))
    driver.attach()
    memory = DeviceMemory(driver, Wanted(128, MIB, MIB, PAGES))
    with pytest.raises(EngineError, match=r"needs 192 bytes of workspace.*has 128.*workspace_bytes"):
        LaunchPlanProgram(driver, memory, tiny.PLANS, b"", tiny.TENSORS, tiny.SHAPES)
    assert "modules" not in driver.leaks


def test_weights_that_the_table_can_not_address_are_refused_with_the_remedy() -> None:
    driver = FakeDriver(kernels=dict(tiny.KERNELS))
    driver.attach()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, PAGES))
    last = (ADDRESSES_COUNT - FIRST_PAGE_ENTRY) * PAGE_BYTES
    fits, beyond = (msgspec.structs.replace(tiny.TENSORS[1], offset=last - less) for less in (64, 0))
    LaunchPlanProgram(driver, memory, tiny.PLANS, b"", (tiny.TENSORS[0], fits), tiny.SHAPES)
    with pytest.raises(EngineError, match=r"take 2049 entries.*has 2048; `--engine onnxruntime`"):
        LaunchPlanProgram(driver, memory, tiny.PLANS, b"", (tiny.TENSORS[0], beyond), tiny.SHAPES)


def test_a_kernel_that_is_missing_names_itself() -> None:
    driver = FakeDriver()
    driver.attach()
    memory = DeviceMemory(driver, Wanted(MIB, MIB, MIB, PAGES))
    with pytest.raises(RuntimeError, match="multiply_1"):
        LaunchPlanProgram(driver, memory, tiny.PLANS, b"", tiny.TENSORS, tiny.SHAPES)
    assert "modules" not in driver.leaks


def test_arguments_are_places_and_numbers_in_the_first_bytes_of_their_word() -> None:
    x, w, _ = tiny.plan(1).launches[0].arguments
    b, product, y = tiny.plan(1).launches[1].arguments
    launch = msgspec.structs.replace(tiny.plan(1).launches[0], arguments=(7, -1, 0.5, x, w, b, product, y))
    plan = msgspec.structs.replace(tiny.plan(1), launches=(launch,))
    arguments = Arguments(plan, tiny.TENSORS, tiny.layout(1))
    pointers = (ctypes.c_uint64 * 8).from_address(arguments.address(0))
    assert ctypes.c_int32.from_address(pointers[0]).value == 7
    assert ctypes.c_int64.from_address(pointers[1]).value == -1
    assert ctypes.c_int32.from_address(pointers[1]).value == -1
    assert ctypes.c_float.from_address(pointers[2]).value == 0.5
    assert [ctypes.c_uint64.from_address(pointer).value for pointer in pointers[3:]] == [
        place(SLOT_ENTRY, 0),
        place(FIRST_PAGE_ENTRY, 128),
        place(FIRST_PAGE_ENTRY + 1, 64),
        place(0, 0),
        place(SLOT_ENTRY, tiny.layout(1).outputs[0]),
    ]


@pytest.mark.parametrize("count", [0, 1, 62, 63, 200])
def test_a_table_of_any_length_is_written_in_launches_of_full_blocks(count: int) -> None:
    symbol, pages = 1 << 20, [(number + 1) << 24 for number in range(count)]
    table = AddressTable(symbol, 512, pages)
    launches = table.parameters(4096)
    written: dict[int, int] = {}
    for parameters in launches:
        target, source = (ctypes.c_uint64 * 2).from_address(parameters)
        first = ctypes.c_uint64.from_address(target).value
        for number, value in enumerate((ctypes.c_uint64 * ADDRESSES_AT_ONCE).from_address(source)):
            written[first + 8 * number] = value
    assert list(written) == [symbol + 8 * number for number in range(ADDRESSES_AT_ONCE * len(launches))]
    assert list(written.values())[: count + 2] == [512, 4096, *pages]
    assert len(launches) == -(-(count + 2) // ADDRESSES_AT_ONCE)


def test_a_model_without_weights_has_no_pages_in_its_table() -> None:
    assert entries(()) == FIRST_PAGE_ENTRY
    assert entries(tiny.TENSORS) == FIRST_PAGE_ENTRY + 2
