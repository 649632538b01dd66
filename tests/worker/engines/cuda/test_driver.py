"""What every driver of a GPU does, by the same tests: the recording fake, and libcuda's on a libcuda of C."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda import cupy_driver, libcuda_driver
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda.driver import Copy, Driver, DriverMissing
from mainspring.worker.engines.cuda.libcuda_driver import LibcudaDriver
from tests.worker.engines.cuda import fake_libcuda
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.fake_libcuda import IMAGE, FakeLibcuda

WIDTH = 64


def twice(source: int, target: int) -> None:
    tiny.floats(target, WIDTH)[:] = 2 * tiny.floats(source, WIDTH)


KERNELS = {"twice": Kernel(twice, 20_000, 2), "rest": Kernel(lambda: None, 5_000, 0)}
SYMBOLS = {"table": 64}


@pytest.fixture(params=["fake", "libcuda"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    if request.param == "fake":
        fake = FakeDriver(kernels=KERNELS)
        fake.symbols |= SYMBOLS
        fake.attach()
        yield fake
        return
    if fake_libcuda.COMPILER is None:
        pytest.skip("a C compiler makes the library")
    cuda = FakeLibcuda()
    for name, kernel in KERNELS.items():
        cuda.add_kernel(name, kernel)
    for name, size in SYMBOLS.items():
        cuda.add_symbol(name, size)
    monkeypatch.setenv(drivers.LIBCUDA, fake_libcuda.library())
    made = LibcudaDriver(0)
    yield made
    made.close()


class Bench:
    """Pinned and device memory of a few numbers each, and a stream."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.size = 4 * WIDTH
        self.host, self.back = driver.allocate_host(self.size), driver.allocate_host(self.size)
        self.first, self.second = driver.allocate(self.size), driver.allocate(self.size)
        self.stream = driver.stream()
        self.done = driver.event()
        self.values = np.arange(WIDTH, dtype=np.float32)
        tiny.floats(self.host, WIDTH)[:] = self.values

    def send(self, target: int, stream: int | None = None) -> None:
        self.driver.copy(target, self.host, self.size, Copy.TO_DEVICE, stream or self.stream)

    def receive(self, source: int) -> tiny.Floats:
        self.driver.copy(self.back, source, self.size, Copy.TO_HOST, self.stream)
        self.driver.record(self.done, self.stream)
        self.driver.synchronize(self.done)
        return tiny.floats(self.back, WIDTH).copy()

    def double(self, function: int) -> None:
        """Launch the kernel from the first place to the second; its arguments are gone when it is told."""
        values = (ctypes.c_uint64 * 2)(self.first, self.second)
        places = (ctypes.c_void_p * 2)(*(ctypes.addressof(values) + 8 * number for number in range(2)))
        self.driver.launch(function, (1, 1, 1), (WIDTH, 1, 1), 0, ctypes.addressof(places), self.stream)
        values[:] = [0, 0]

    def close(self) -> None:
        for address in (self.first, self.second):
            self.driver.free(address)
        for address in (self.host, self.back):
            self.driver.free_host(address)


@pytest.fixture
def bench(driver: Driver) -> Iterator[Bench]:
    made = Bench(driver)
    yield made
    made.close()


def test_a_gpu_describes_itself(driver: Driver) -> None:
    assert driver.name().startswith("NVIDIA Fake")
    assert (driver.device, driver.arch(), driver.bus_id()) == (0, "sm_90", "0000:3b:00.0")


def test_memory_is_counted_as_it_is_taken_and_given_back(driver: Driver) -> None:
    free, total = driver.memory()
    assert 0 < free <= total
    address = driver.allocate(1 << 20)
    assert address % 256 == 0
    assert free - (1 << 20) - 512 <= driver.memory().free_bytes <= free - (1 << 20)
    driver.free(address)
    assert driver.memory() == (free, total)


def test_bytes_come_back_from_wherever_they_were_copied(bench: Bench) -> None:
    bench.send(bench.first)
    bench.driver.copy(bench.second, bench.first, bench.size, Copy.ON_DEVICE, bench.stream)
    np.testing.assert_array_equal(bench.receive(bench.second), bench.values)
    bench.driver.clear(bench.second, bench.size // 2, bench.stream)
    found = bench.receive(bench.second)
    assert not found[: WIDTH // 2].any()
    np.testing.assert_array_equal(found[WIDTH // 2 :], bench.values[WIDTH // 2 :])


def test_memory_that_exists_can_be_pinned_and_copied_from(bench: Bench) -> None:
    own = np.full(WIDTH, 7, np.float32)
    bench.driver.register_host(own.ctypes.data, own.nbytes)
    bench.driver.copy(bench.first, own.ctypes.data, own.nbytes, Copy.TO_DEVICE, bench.stream)
    np.testing.assert_array_equal(bench.receive(bench.first), own)
    with pytest.raises(RuntimeError, match="already mapped"):
        bench.driver.register_host(own.ctypes.data + 4, 8)
    bench.driver.unregister_host(own.ctypes.data)


def test_an_event_happens_when_what_was_told_before_it_is_done(bench: Bench) -> None:
    assert bench.driver.happened(bench.done), "nobody has recorded it"
    bench.send(bench.first)
    bench.driver.record(bench.done, bench.stream)
    bench.driver.synchronize(bench.done)
    assert bench.driver.happened(bench.done)


def test_events_order_streams_and_tell_the_time_between_them(bench: Bench) -> None:
    driver, urgent = bench.driver, bench.driver.stream(urgent=True)
    begin, sent, end = (driver.event(timed=True) for _ in range(3))
    driver.record(begin, urgent)
    bench.send(bench.first, urgent)
    driver.record(sent, urgent)
    driver.wait(bench.stream, sent)
    np.testing.assert_array_equal(bench.receive(bench.first), bench.values)
    driver.record(end, bench.stream)
    driver.synchronize(end)
    assert 0 < driver.elapsed_ns(begin, sent) < driver.elapsed_ns(begin, end)


def test_kernels_read_their_arguments_when_they_are_told(bench: Bench) -> None:
    module = bench.driver.load_module(IMAGE)
    bench.send(bench.first)
    bench.double(bench.driver.function(module, "twice", 0))
    np.testing.assert_array_equal(bench.receive(bench.second), 2 * bench.values)
    bench.driver.unload_module(module)


def test_a_graph_does_at_each_launch_what_was_captured(bench: Bench) -> None:
    driver = bench.driver
    module = driver.load_module(IMAGE)
    function = driver.function(module, "twice", 0)
    begin, end = driver.event(timed=True), driver.event(timed=True)
    driver.clear(bench.second, bench.size, bench.stream)
    driver.begin_capture(bench.stream)
    driver.record_at_launch(begin, bench.stream)
    bench.double(function)
    driver.record_at_launch(end, bench.stream)
    graph = driver.end_capture(bench.stream)
    executable = driver.instantiate(graph)
    driver.destroy_graph(graph)
    driver.upload(executable, bench.stream)
    assert not bench.receive(bench.second).any(), "the capture ran the kernel"
    for factor in (1, 3):
        tiny.floats(bench.host, WIDTH)[:] = factor * bench.values
        bench.send(bench.first)
        driver.launch_graph(executable, bench.stream)
        np.testing.assert_array_equal(bench.receive(bench.second), 2 * factor * bench.values)
        assert driver.elapsed_ns(begin, end) == pytest.approx(20_000, abs=1)
    driver.destroy_executable(executable)
    driver.unload_module(module)


def test_a_capture_forbids_what_waits_for_the_device(bench: Bench) -> None:
    bench.driver.begin_capture(bench.stream)
    with pytest.raises(RuntimeError, match="stream is capturing"):
        bench.driver.allocate(256)
    bench.driver.destroy_graph(bench.driver.end_capture(bench.stream))


def test_a_modules_variables_have_addresses_of_their_own(bench: Bench) -> None:
    modules = [bench.driver.load_module(IMAGE) for _ in range(2)]
    addresses = {bench.driver.symbol(module, "table") for module in modules}
    assert len(addresses) == 2
    assert 0 not in addresses
    assert bench.driver.symbol(modules[0], "table") in addresses
    for module in modules:
        bench.driver.unload_module(module)


def test_names_that_a_module_lacks_are_errors_that_explain_themselves(driver: Driver) -> None:
    module = driver.load_module(IMAGE)
    calls: list[Any] = [lambda: driver.function(module, "other", 0), lambda: driver.symbol(module, "other")]
    for call in calls:
        with pytest.raises(RuntimeError, match="named symbol not found") as failed:
            call()
        assert str(driver.explain(failed.value)).startswith("GPU 0: ")
    driver.unload_module(module)
    own = EngineError("too small")
    assert driver.explain(own) is own


def test_kernels_have_as_much_shared_memory_as_they_asked_for(bench: Bench) -> None:
    module = bench.driver.load_module(IMAGE)
    small, large = (bench.driver.function(module, "rest", size) for size in (0, 100_000))

    def launch(function: int) -> None:
        bench.driver.launch(function, (1, 1, 1), (1, 1, 1), 100_000, 0, bench.stream)

    launch(large)
    with pytest.raises(RuntimeError, match="invalid argument"):
        launch(small)
    bench.driver.unload_module(module)


def test_a_thread_uses_the_gpu_once_it_is_attached(bench: Bench) -> None:
    found: list[tiny.Floats] = []

    def use() -> None:
        bench.driver.attach()
        bench.driver.attach()
        bench.send(bench.first)
        found.append(bench.receive(bench.first))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], bench.values)


# --- which of them is used ---


def choose(monkeypatch: pytest.MonkeyPatch, cupy: str, libcuda: str) -> str:
    """Return what is chosen where these are the reasons against CuPy and libcuda."""
    reasons: tuple[tuple[Any, str], ...] = ((cupy_driver, cupy), (libcuda_driver, libcuda))
    for module, reason in reasons:
        made = FakeDriver()
        monkeypatch.setattr(made, "name", lambda module=module: module.__name__.rpartition(".")[2])
        monkeypatch.setattr(module, "missing", lambda reason=reason: reason)
        monkeypatch.setattr(module, "open_device", lambda _, made=made: made)
    return drivers.open_driver(0).name()


def test_cupy_is_used_where_it_is_and_else_libcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(drivers.LIBCUDA, raising=False)
    assert choose(monkeypatch, "", "") == "cupy_driver"
    assert choose(monkeypatch, "", "no library") == "cupy_driver"
    assert choose(monkeypatch, "no package", "") == "libcuda_driver"
    with pytest.raises(DriverMissing, match="no GPU can be used here; no library; no package"):
        choose(monkeypatch, "no package", "no library")


def test_the_variable_asks_for_libcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drivers.LIBCUDA, "libcuda.so.1")
    assert choose(monkeypatch, "", "") == "libcuda_driver"
    with pytest.raises(DriverMissing, match=r"here; no library$"):
        choose(monkeypatch, "", "no library")


def test_both_are_named_where_neither_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(drivers.LIBCUDA, raising=False)
    monkeypatch.setattr(libcuda_driver, "DEFAULT_PATH", "no-such-library.so.1")
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(DriverMissing, match=r"(?s)no-such-library.*--gpus all.*CuPy.*pip install"):
            drivers.open_driver(0)
        return
    pytest.skip("CuPy is installed here")
