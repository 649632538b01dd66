"""The driver on libcuda alone: its calls by ``cuda.h``, its errors, and a whole engine on a libcuda of C.

What each parameter is was read from the ``cuda.h`` of CUDA 12.9 and 13.0; where one is installed, the table
here is compared with it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.compiler.artifact.nvrtc import NvrtcMissing, header_folders
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import ATTRIBUTES, Attributes
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Reservation, Slot, SlotLayout
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda import libcuda_driver
from mainspring.worker.engines.cuda.devices import FoundDevice, find_devices
from mainspring.worker.engines.cuda.driver import DriverMissing
from mainspring.worker.engines.cuda.engine import CudaEngine
from mainspring.worker.engines.cuda.libcuda_driver import CONSTANTS, SIGNATURES, LibcudaDriver, count_devices
from mainspring.worker.engines.cuda.runs import Run
from tests.worker.engines.cuda import fake_libcuda, tiny_store
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.fake_libcuda import IMAGE, FakeLibcuda
from tests.worker.peers import infer, load

TABLE = {
    "cuInit": "unsigned",
    "cuDriverGetVersion": "int*",
    "cuDeviceGetCount": "int*",
    "cuDeviceGet": "int* int",
    "cuDeviceGetName": "text int int",
    "cuDeviceGetAttribute": "int* int int",
    "cuDeviceGetPCIBusId": "text int int",
    "cuDevicePrimaryCtxSetFlags_v2": "int unsigned",
    "cuDevicePrimaryCtxRetain": "handle* int",
    "cuDevicePrimaryCtxRelease_v2": "int",
    "cuCtxSetCurrent": "handle",
    "cuCtxSynchronize": "",
    "cuCtxGetStreamPriorityRange": "int* int*",
    "cuMemGetInfo_v2": "size* size*",
    "cuMemAlloc_v2": "address* size",
    "cuMemFree_v2": "address",
    "cuMemHostAlloc": "handle* size unsigned",
    "cuMemFreeHost": "void*",
    "cuMemHostRegister_v2": "void* size unsigned",
    "cuMemHostUnregister": "void*",
    "cuStreamCreateWithPriority": "handle* unsigned int",
    "cuStreamDestroy_v2": "handle",
    "cuStreamWaitEvent": "handle handle unsigned",
    "cuEventCreate": "handle* unsigned",
    "cuEventDestroy_v2": "handle",
    "cuEventRecord": "handle handle",
    "cuEventRecordWithFlags": "handle handle unsigned",
    "cuEventQuery": "handle",
    "cuEventSynchronize": "handle",
    "cuEventElapsedTime": "float* handle handle",
    "cuMemcpyHtoDAsync_v2": "address void* size handle",
    "cuMemcpyDtoHAsync_v2": "void* address size handle",
    "cuMemcpyDtoDAsync_v2": "address address size handle",
    "cuMemsetD8Async": "address byte size handle",
    "cuModuleLoadData": "handle* void*",
    "cuModuleUnload": "handle",
    "cuModuleGetFunction": "handle* handle text",
    "cuModuleGetGlobal_v2": "address* size* handle text",
    "cuFuncSetAttribute": "handle int int",
    "cuLaunchKernel": "handle" + " unsigned" * 7 + " handle arguments* arguments*",
    "cuStreamBeginCapture_v2": "handle int",
    "cuStreamEndCapture": "handle handle*",
    "cuGraphInstantiateWithFlags": "handle* handle long",
    "cuGraphUpload": "handle handle",
    "cuGraphLaunch": "handle handle",
    "cuGraphDestroy": "handle",
    "cuGraphExecDestroy": "handle",
    "cuGetErrorName": "int text*",
    "cuGetErrorString": "int text*",
}  # fmt: skip
"""Parameters as ``cuda.h`` has them: ``*`` after what a pointer leads to, ``handle`` for CUDA's own."""
SAME_AS_NEWER = {"cuEventElapsedTime": "cuEventElapsedTime_v2"}
"""Functions whose newest version drivers of CUDA 12.0 lack, and that every driver exports as before."""

TOLD = Attributes(16, 1_980_000, 2_619_000, 5_120, 232_448, 65_536)
"""What the library that stands in for CUDA's says of its GPUs."""
OF_DEVICES = {
    "processors": "MULTIPROCESSOR_COUNT", "clock_khz": "CLOCK_RATE", "memory_clock_khz": "MEMORY_CLOCK_RATE",
    "memory_bus_bits": "GLOBAL_MEMORY_BUS_WIDTH", "shared_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "registers": "MAX_REGISTERS_PER_MULTIPROCESSOR",
}  # fmt: skip
"""Attributes as ``cuda.h`` calls them."""

NUMBERS = {
    "int": ctypes.c_int, "unsigned": ctypes.c_uint, "byte": ctypes.c_ubyte, "size": ctypes.c_size_t,
    "address": ctypes.c_uint64, "long": ctypes.c_ulonglong, "float": ctypes.c_float, "text": ctypes.c_char_p,
    "handle": ctypes.c_void_p, "void*": ctypes.c_void_p,
}  # fmt: skip


def kind(word: str) -> Any:
    """Return what ctypes has to convert a parameter of the table to."""
    if word in NUMBERS:
        return NUMBERS[word]
    if word == "arguments*":
        return ctypes.c_void_p
    return ctypes.POINTER(NUMBERS[word.removesuffix("*")])


def word(parameter: str) -> str:
    """Return what a parameter of ``cuda.h`` is in the table."""
    stars = parameter.count("*")
    name = parameter.replace("const", "").replace("*", " ").split()
    base = " ".join(name[:-1])
    found = {
        "int": "int", "CUdevice": "int", "unsigned int": "unsigned", "unsigned char": "byte",
        "unsigned long long": "long", "size_t": "size", "float": "float", "CUdeviceptr": "address",
        "CUresult": "int", "CUdevice_attribute": "int",
        "CUfunction_attribute": "int", "CUstreamCaptureMode": "int",
    }.get(base, "handle")  # fmt: skip
    if base == "char":
        return "text" + "*" * (stars - 1)
    if base == "void":
        return "void*" if stars == 1 else "arguments*" if name[-1] in ("kernelParams", "extra") else "handle*"
    return found + "*" * stars


def header() -> Path:
    """Return an installed ``cuda.h``; skip the test where there is none."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "/opt/cuda"]
    folders = [Path(home, "include") for home in homes if home]
    with contextlib.suppress(NvrtcMissing):
        folders += header_folders()
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return folder / "cuda.h"
    pytest.skip("cuda.h is nowhere here; set CUDA_HOME to the folder of a toolkit")


def declared(path: Path, *options: str) -> dict[str, str]:
    """Return the parameters of all functions in a header, by the names that libraries export them under."""
    text = preprocessed(path, *options)
    found = {}
    for name, inside in re.findall(r"CUresult\s+(cu\w+)\s*\(([^()]*)\)\s*;", text):
        parameters = [] if inside.strip() in ("", "void") else inside.split(",")
        found[name] = " ".join(map(word, parameters))
    return found


def preprocessed(path: Path, *options: str) -> str:
    if fake_libcuda.COMPILER is None:
        pytest.skip("a C compiler reads the header")
    command = [fake_libcuda.COMPILER, "-E", "-P", "-x", "c", *options, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_every_prototype_is_that_of_the_table() -> None:
    for name, parameters in TABLE.items():
        assert SIGNATURES[name] == tuple(map(kind, parameters.split())), name
    assert SIGNATURES.keys() == TABLE.keys()


def test_the_table_is_that_of_the_header() -> None:
    path = header()
    functions = declared(path)
    older = declared(path, "-D__CUDA_API_VERSION_INTERNAL")
    for name, parameters in TABLE.items():
        if name in functions:
            assert functions[name] == parameters, name
            continue
        # The header maps the plain name to a newer version.
        assert older[name] == parameters, name
        assert functions[SAME_AS_NEWER[name]] == parameters, name


def test_constants_and_errors_are_those_of_the_header(tmp_path: Path) -> None:
    path = header()
    checks = [f"_Static_assert({name} == {value}, #name);" for name, value in CONSTANTS.items()]
    asked = [(f"CU_DEVICE_ATTRIBUTE_{OF_DEVICES[name]}", number) for name, number in ATTRIBUTES.items()]
    checks += [f"_Static_assert({name} == {number}, #name);" for name, number in asked]
    names = ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_LAUNCH_FAILED"]
    text = preprocessed(path)
    for name in names:
        (value,) = re.findall(rf"\b{name}\s*=\s*(\d+)", text)
        assert int(value) in drivers.LOST, name
    remedies = {int(value) for value in re.findall(r"\bCUDA_ERROR_\w+\s*=\s*(\d+)", text)}
    assert libcuda_driver.REMEDIES.keys() <= remedies
    source = tmp_path / "constants.c"
    source.write_text("#include <cuda.h>\n" + "\n".join(checks).replace("#name", '""'))
    assert fake_libcuda.COMPILER is not None
    subprocess.run(
        [fake_libcuda.COMPILER, "-fsyntax-only", f"-I{path.parent}", source], check=True, timeout=60
    )


# --- what it asks of CUDA ---


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeLibcuda:
    if fake_libcuda.COMPILER is None:
        pytest.skip("a C compiler makes the library")
    monkeypatch.setenv(drivers.LIBCUDA, fake_libcuda.library())
    return FakeLibcuda()


@pytest.fixture
def driver(cuda: FakeLibcuda) -> Iterator[LibcudaDriver]:
    made = LibcudaDriver(0)
    cuda.calls()
    yield made
    made.close()


def test_the_primary_context_spins_and_is_given_back(cuda: FakeLibcuda) -> None:
    driver = LibcudaDriver(1)
    calls = cuda.calls()
    flags, retained = (
        calls.index("cuDevicePrimaryCtxSetFlags_v2 1 1"),
        calls.index("cuDevicePrimaryCtxRetain 1"),
    )
    assert flags < retained < calls.index("cuCtxSetCurrent")
    driver.stream()
    driver.event()
    assert cuda.alive() == {"contexts": 1, "streams": 1, "events": 1}
    driver.close()
    driver.close()
    assert not cuda.alive()


def test_flags_are_those_that_the_worker_needs(cuda: FakeLibcuda, driver: LibcudaDriver) -> None:
    driver.stream()
    driver.stream(urgent=True)
    driver.event()
    driver.event(timed=True)
    driver.event(sleeps=True)
    driver.free_host(driver.allocate_host(64))
    own = np.zeros(64, np.uint8)
    driver.register_host(own.ctypes.data, own.nbytes)
    driver.unregister_host(own.ctypes.data)
    driver.register_host(own.ctypes.data, own.nbytes, read_only=True)
    driver.unregister_host(own.ctypes.data)
    cuda.add_kernel("rest", tiny.KERNELS["add_1"])
    module = driver.load_module(IMAGE)
    driver.function(module, "rest", 48 << 10)
    driver.function(module, "rest", 100_000)
    driver.unload_module(module)
    assert cuda.calls() == [
        "cuStreamCreateWithPriority 1 0", "cuStreamCreateWithPriority 1 -5",
        "cuEventCreate 2", "cuEventCreate 0", "cuEventCreate 3",
        "cuMemHostAlloc 64 1", "cuMemFreeHost", "cuMemHostRegister_v2 64 1", "cuMemHostUnregister",
        "cuMemHostRegister_v2 64 9", "cuMemHostUnregister",
        "cuModuleLoadData", "cuModuleGetFunction rest", "cuModuleGetFunction rest",
        "cuFuncSetAttribute 8 100000", "cuModuleUnload",
    ]  # fmt: skip


def test_sizes_and_addresses_beyond_32_bits_arrive_whole(cuda: FakeLibcuda, driver: LibcudaDriver) -> None:
    """Passed as C's int they would be cut in silence."""
    cuda.total(1 << 50)
    with pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
        driver.allocate((1 << 50) + 512)
    assert cuda.calls() == [f"cuMemAlloc_v2 {(1 << 50) + 512}"]
    assert driver.memory().total_bytes == 1 << 50
    assert driver.allocate(64) > 1 << 32


def test_a_gpu_that_does_not_know_read_only_memory_is_not_asked_to_pin_it_so(cuda: FakeLibcuda) -> None:
    cuda.fail("cuDeviceGetAttribute", 1)
    driver = LibcudaDriver(0)
    own = np.zeros(64, np.uint8)
    driver.register_host(own.ctypes.data, own.nbytes, read_only=True)
    assert "cuMemHostRegister_v2 64 1" in cuda.calls()
    driver.unregister_host(own.ctypes.data)
    driver.close()


def test_an_event_that_has_not_happened_is_no_error(cuda: FakeLibcuda, driver: LibcudaDriver) -> None:
    event = driver.event()
    assert driver.happened(event)
    cuda.fail("cuEventQuery", 600)
    assert not driver.happened(event)


def test_an_event_of_a_lost_device_can_not_be_asked_for(cuda: FakeLibcuda, driver: LibcudaDriver) -> None:
    cuda.fail("cuEventQuery", 719)
    with pytest.raises(RuntimeError, match="719"):
        driver.happened(driver.event())


# --- errors ---


@pytest.mark.parametrize(
    ("call", "status", "says"),
    [
        (
            "cuMemAlloc_v2",
            2,
            r"cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY \(2\): out of memory; end what",
        ),
        ("cuMemAlloc_v2", 12345, r"cuMemAlloc_v2 failed: CUDA error \(12345\)$"),
    ],
)
def test_an_error_names_the_call_what_it_is_and_what_helps(
    cuda: FakeLibcuda, driver: LibcudaDriver, call: str, status: int, says: str
) -> None:
    cuda.fail(call, status)
    with pytest.raises(RuntimeError, match=says) as failed:
        driver.allocate(256)
    found = driver.explain(failed.value)
    assert not isinstance(found, DeviceLost)
    assert str(found).startswith("GPU 0: cuMemAlloc_v2 failed")


def test_code_that_the_gpu_can_not_run_is_refused_with_a_remedy(driver: LibcudaDriver) -> None:
    with pytest.raises(RuntimeError, match=r"INVALID_IMAGE.*compile the model again"):
        driver.load_module(b"ELF of another kind")


def test_a_lost_device_ends_the_worker(
    cuda: FakeLibcuda, driver: LibcudaDriver, caplog: pytest.LogCaptureFixture
) -> None:
    stream, event = driver.stream(), driver.event()
    for call in ("cuEventSynchronize", "cuGraphLaunch", "cuCtxSynchronize"):
        cuda.fail(call, 719)
    uses: list[Any] = [lambda: driver.synchronize(event), lambda: driver.launch_graph(event, stream)]
    for use in uses:
        with pytest.raises(RuntimeError) as failed:
            use()
        found = driver.explain(failed.value)
        assert isinstance(found, DeviceLost)
        assert re.search(r"GPU 0: .*LAUNCH_FAILED.*restarted", str(found))
    driver.close()
    assert "could not be closed in order" in caplog.text


def test_a_thread_that_is_not_attached_is_told(driver: LibcudaDriver) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="INVALID_CONTEXT"):
        pool.submit(driver.memory).result()


def test_a_context_that_can_not_be_had_is_an_error_of_the_engine(cuda: FakeLibcuda) -> None:
    cuda.fail("cuDevicePrimaryCtxRetain", 2)
    with pytest.raises(EngineError, match=r"GPU 0: cuDevicePrimaryCtxRetain failed.*OUT_OF_MEMORY"):
        drivers.open_driver(0)


# --- the machine ---


def test_gpus_are_listed_without_a_context(cuda: FakeLibcuda) -> None:
    assert count_devices() == 2
    assert libcuda_driver.describe_device(1) == ("NVIDIA Fake 1", "0000:3c:00.0", "sm_90", TOLD)
    assert not cuda.alive()
    with pytest.raises(DriverMissing, match="no GPU 2: CUDA counts 2"):
        LibcudaDriver(2)


def test_the_launcher_finds_gpus_without_any_package(cuda: FakeLibcuda) -> None:
    assert cuda is not None
    assert find_devices() == [
        FoundDevice(number, f"NVIDIA Fake {number}", f"0000:{0x3B + number:02x}:00.0", "sm_90", TOLD)
        for number in range(2)
    ]


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("FAKE_LIBCUDA_DEVICES", "0", "NO_DEVICE.*CUDA_VISIBLE_DEVICES.*--gpus all"),
        ("FAKE_LIBCUDA_VERSION", "11080", "for CUDA 11.8 at most: install driver 525 or newer"),
        (drivers.LIBCUDA, "/no/such/libcuda.so.1", "/no/such/libcuda.so.1.*install driver 525"),
    ],
)
def test_a_machine_that_has_no_gpu_says_why(
    cuda: FakeLibcuda, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    assert cuda is not None
    monkeypatch.setenv(variable, value)
    with pytest.raises(DriverMissing, match=says):
        find_devices()


def test_a_driver_that_lacks_a_function_is_too_old(tmp_path: Path) -> None:
    if fake_libcuda.COMPILER is None:
        pytest.skip("a C compiler makes the library")
    (tmp_path / "old.c").write_text("int cuInit(unsigned flags) { return 0; }")
    path = tmp_path / "libcuda.so.1"
    command = [fake_libcuda.COMPILER, "-shared", "-fPIC", "-o", str(path), str(tmp_path / "old.c")]
    subprocess.run(command, check=True, timeout=60)
    with pytest.raises(
        DriverMissing, match="has no cuDriverGetVersion: install NVIDIA's driver 525 or newer"
    ):
        libcuda_driver._library(str(path))


# --- the worker on it ---


def _worker(cuda: FakeLibcuda, folder: Path) -> tuple[CudaEngine, Store]:
    for name, kernel in tiny.KERNELS.items():
        cuda.add_kernel(name, kernel)
    store: Store = tiny_store.tiny_store(folder / "store")
    config = WorkerConfig(
        name="w", engine="tvm", device="cuda:0", store=str(store.root), pages=8,
        io_bytes=MIB, workspace_bytes=MIB, reserve_bytes=0,
    )  # fmt: skip
    return CudaEngine(config, drivers.open_driver(0), folder / "agreed"), store


def _send(engine: CudaEngine, io: Reservation, x: tiny.Floats) -> None:
    start = io.slot.offset + io.layout.inputs[0]
    engine.io[start : start + x.nbytes] = x.reshape(-1).view(np.uint8)
    engine.transfers.send(io, io.layout.inputs[0], x.nbytes)


def _check(engine: CudaEngine, io: Reservation, x: tiny.Floats, name: str) -> None:
    assert engine.transfers.receive(io) == ""
    start = io.slot.offset + io.layout.outputs[0]
    found = engine.io[start : start + x.nbytes].view(np.float32).reshape(x.shape)
    np.testing.assert_allclose(found, tiny.expected(tiny.weights_file(ord(name)), x), rtol=1e-6)


def test_a_worker_serves_launch_plans_with_the_driver_alone(cuda: FakeLibcuda, tmp_path: Path) -> None:
    """LOAD to pages that differ, INFER at each batch size, and everything given back at the end."""
    engine, store = _worker(cuda, tmp_path)
    for number, (name, pages) in enumerate((("a", (0, 1)), ("b", (6, 3)), ("a", (5, 2)))):
        spec = store.manifest(name).spec()
        engine.prepare(spec)
        assert engine.load(load(1, pages, name)) > 0
        for rows in tiny.SIZES:
            layout = slot_layout(spec, rows)
            io = Reservation(Slot(4096 * number, layout.size), layout)
            x = np.random.default_rng(rows).standard_normal((rows, tiny.WIDTH), np.float32)
            _send(engine, io, x)
            assert engine.execute(infer(1, tuple(range(rows)), model=name), io) > 0
            _check(engine, io, x, name)
        engine.unload(name)
        engine.release(name)
    engine.close()
    assert not cuda.alive()


def test_the_library_has_two_batches_at_once(cuda: FakeLibcuda, tmp_path: Path) -> None:
    """Of two models and two sizes in turn: each pair has its own addresses, events and outputs."""
    engine, store = _worker(cuda, tmp_path)
    layouts: dict[int, SlotLayout] = {}
    for name, pages in (("a", (0, 1)), ("b", (6, 3))):
        spec = store.manifest(name).spec()
        layouts |= {rows: slot_layout(spec, rows) for rows in tiny.SIZES}
        engine.prepare(spec)
        engine.load(load(1, pages, name))
    given: list[tuple[Run, Reservation, tiny.Floats, str]] = []
    ended_ns = 0
    for number in range(13):
        if number < 12:
            name, rows = "aab"[number % 3], 1 + number % 4 // 2
            io = Reservation(Slot(4096 * (number % 3), layouts[rows].size), layouts[rows])
            x = np.random.default_rng(number).standard_normal((rows, tiny.WIDTH), np.float32)
            _send(engine, io, x)
            run = engine.give(infer(1, tuple(range(rows)), model=name), io)
            given.append((run, io, x, name))
        if number:
            run, io, x, name = given.pop(0)
            ran = run.wait()
            assert ended_ns <= ran.begin_ns <= ran.end_ns
            assert ran.device_ns > 0
            ended_ns = ran.end_ns
            _check(engine, io, x, name)
    for name in "ab":
        engine.unload(name)
        engine.release(name)
    engine.close()
    assert not cuda.alive()
