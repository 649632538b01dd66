"""The fake GPU refuses what a real one does: else code that only it lets pass would be tested with it."""

from __future__ import annotations

import ctypes
import threading

import pytest

from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver(kernels={"f": Kernel(lambda: None, parameters=0)})
    made.attach()
    return made


def kernel(driver: FakeDriver, shared_bytes: int = 0) -> int:
    return driver.function(driver.load_module(b""), "f", shared_bytes)


def in_another_thread(work: object) -> BaseException:
    """Return what a function raises in a thread that is not this one."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return raised[0]


def test_a_thread_that_is_not_attached(driver: FakeDriver) -> None:
    for call in (driver.stream, lambda: driver.free(1), lambda: driver.destroy_graph(1)):
        assert "not attached" in str(in_another_thread(call))


def test_a_time_of_events_that_keep_none(driver: FakeDriver) -> None:
    stream, timed, other = driver.stream(), driver.event(timed=True), driver.event()
    for event in (timed, other):
        driver.record(event, stream)
        driver.synchronize(event)
    with pytest.raises(AssertionError, match="without a time"):
        driver.elapsed_ns(timed, other)


def test_what_waits_for_the_device_in_a_thread_that_captures(driver: FakeDriver) -> None:
    stream, event = driver.stream(), driver.event()
    driver.begin_capture(stream)
    for call in (lambda: driver.allocate(1), lambda: driver.synchronize(event)):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            call()
    driver.end_capture(stream)
    driver.free(driver.allocate(1))


def test_a_capture_that_another_thread_ends(driver: FakeDriver) -> None:
    stream = driver.stream()
    driver.begin_capture(stream)

    def end() -> None:
        driver.attach()
        driver.end_capture(stream)

    assert "another thread" in str(in_another_thread(end))


def test_memory_that_is_pinned_already(driver: FakeDriver) -> None:
    driver.register_host(1 << 20, 4096)
    driver.register_host((1 << 20) + 4096, 4096)
    with pytest.raises(RuntimeError, match="already mapped"):
        driver.register_host((1 << 20) + 100, 10)


def test_shared_memory_that_was_not_allowed_or_is_not_there(driver: FakeDriver) -> None:
    stream, none = driver.stream(), ctypes.addressof(ctypes.c_uint64(0))
    driver.launch(kernel(driver, 100_000), (1, 1, 1), (32, 1, 1), 100_000, none, stream)
    driver.launch(kernel(driver), (1, 1, 1), (32, 1, 1), 48 << 10, none, stream)
    with pytest.raises(RuntimeError, match="were not allowed"):
        driver.launch(kernel(driver), (1, 1, 1), (32, 1, 1), 50_000, none, stream)
    with pytest.raises(RuntimeError, match="invalid argument"):
        kernel(driver, 230 << 10)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((0, 1, 1), (1, 1, 1)), ((1, 65_536, 1), (1, 1, 1)), ((1, 1, 1), (32, 33, 1)), ((1, 1, 1), (1, 1, 65))],
)
def test_grids_and_blocks_that_no_gpu_has(
    driver: FakeDriver, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    with pytest.raises(RuntimeError, match="invalid configuration"):
        driver.launch(kernel(driver), grid, block, 0, 0, driver.stream())


def test_a_graph_that_runs_is_not_changed_or_destroyed(driver: FakeDriver) -> None:
    stream, parameters, function = driver.stream(), ctypes.c_uint64(0), kernel(driver)
    driver.begin_capture(stream)
    driver.launch(function, (1, 1, 1), (32, 1, 1), 0, ctypes.addressof(parameters), stream)
    graph = driver.end_capture(stream)
    executable = driver.instantiate(graph)
    driver.launch_graph(executable, stream)
    with pytest.raises(AssertionError, match="has not ended"):
        driver.destroy_executable(executable)
    driver.run_all()
    driver.destroy_executable(executable)


def test_a_variable_has_one_address_in_each_module(driver: FakeDriver) -> None:
    driver.symbols["table"] = 64
    first, second = driver.load_module(b""), driver.load_module(b"")
    addresses = [driver.symbol(module, "table") for module in (first, second, first)]
    assert addresses[0] == addresses[2] != addresses[1]
    with pytest.raises(RuntimeError, match="not found: other"):
        driver.symbol(first, "other")
