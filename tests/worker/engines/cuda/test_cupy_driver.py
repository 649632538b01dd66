"""The driver's calls against CuPy's and cuda-bindings' own signatures, and what their errors mean.

The signatures are those of CuPy 14.2 and cuda-bindings 13.5; where both are installed they are compared.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from mainspring.compiler.artifact.target import Attributes
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda import cupy_driver
from mainspring.worker.engines.cuda import driver as drivers
from mainspring.worker.engines.cuda.cupy_driver import CupyDriver, count_devices, describe_device
from mainspring.worker.engines.cuda.driver import Copy, Driver, DriverMissing

RUNTIME = {
    "deviceGetPCIBusId": "device", "deviceSynchronize": "", "eventCreateWithFlags": "flags",
    "eventDestroy": "event", "eventElapsedTime": "start end", "eventRecord": "event stream",
    "eventQuery": "event", "eventSynchronize": "event", "free": "ptr", "freeHost": "ptr",
    "getDeviceCount": "",
    "deviceGetAttribute": "attrib device", "getDeviceProperties": "device", "graphDestroy": "graph",
    "graphExecDestroy": "graphExec",
    "graphInstantiate": "graph", "graphLaunch": "graphExec stream", "graphUpload": "graphExec stream",
    "hostAlloc": "size flags", "hostRegister": "ptr size flags", "hostUnregister": "ptr", "malloc": "size",
    "memGetInfo": "", "memcpyAsync": "dst src size kind stream", "memsetAsync": "ptr value size stream",
    "setDevice": "device", "streamBeginCapture": "stream mode", "streamCreateWithPriority": "flags priority",
    "streamDestroy": "stream", "streamEndCapture": "stream", "streamWaitEvent": "stream event flags",
}  # fmt: skip
CONSTANTS = {
    "eventBlockingSync": 1, "eventDisableTiming": 2, "hostAllocPortable": 1, "memcpyDeviceToDevice": 3,
    "memcpyDeviceToHost": 2, "memcpyHostToDevice": 1, "streamCaptureModeThreadLocal": 1,
    "streamNonBlocking": 1,
}  # fmt: skip
DRIVER = {
    "funcSetAttribute": "f attribute value",
    "launchKernel": "f grid_dim_x grid_dim_y grid_dim_z block_dim_x block_dim_y block_dim_z shared_mem_bytes "
    "stream kernel_params extra",
    "moduleGetFunction": "module funcname",
    "moduleGetGlobal": "module varname",
    "moduleLoadData": "image",
    "moduleUnload": "module",
}
BINDINGS = {
    "cuDevicePrimaryCtxSetFlags": "dev flags",
    "cuEventRecordWithFlags": "hEvent hStream flags",
    "cuInit": "Flags",
}
OPTIONAL = {"flags", "mode"}
"""Parameters that have a default where they are the last."""


class CudaError(RuntimeError):
    """What CuPy raises."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Library:
    """A module of bindings that notes its calls and checks how many arguments they have."""

    def __init__(self, signatures: dict[str, str], answers: dict[str, Any]) -> None:
        self.signatures = signatures
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []
        self.fails: dict[str, Exception] = {}

    def __getattr__(self, name: str) -> Any:
        if name in CONSTANTS:
            return CONSTANTS[name]
        parameters = self.signatures[name].split()

        def call(*args: Any) -> Any:
            least = len(parameters) - (parameters[-1:] != [] and parameters[-1] in OPTIONAL)
            assert least <= len(args) <= len(parameters), f"{name}{args}"
            self.calls.append((name, *args))
            if name in self.fails:
                raise self.fails[name]
            return self.answers.get(name)

        return call


class Libraries:
    """CuPy and cuda-bindings on a machine with two GPUs."""

    def __init__(self) -> None:
        properties = {"name": b"NVIDIA H200", "major": 9, "minor": 0}
        self.runtime = Library(
            RUNTIME,
            {
                "getDeviceCount": 2, "getDeviceProperties": properties, "malloc": 4096, "hostAlloc": 8192,
                "deviceGetAttribute": 132, "deviceGetPCIBusId": "0000:3B:00.0", "memGetInfo": (5, 7),
                "eventElapsedTime": 1.5, "eventQuery": 0,
                "eventCreateWithFlags": 11, "streamCreateWithPriority": 12, "streamEndCapture": 13,
                "graphInstantiate": 14,
            },
        )  # fmt: skip
        self.driver = Library(DRIVER, {"moduleLoadData": 21, "moduleGetFunction": 22, "moduleGetGlobal": 23})
        ok = (0,)
        self.bindings = Library(
            BINDINGS,
            {"cuInit": ok, "cuDevicePrimaryCtxSetFlags": ok, "cuEventRecordWithFlags": ok},
        )

    def __iter__(self) -> Any:
        return iter((self.runtime, self.driver, self.bindings))


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Libraries:
    made = Libraries()
    monkeypatch.setattr(cupy_driver, "_libraries", lambda: made)
    return made


def test_it_is_the_gpu_that_was_asked_for(libraries: Libraries) -> None:
    driver: Driver = CupyDriver(1)
    assert (driver.device, driver.name(), driver.arch()) == (1, "NVIDIA H200", "sm_90")
    assert driver.bus_id() == "0000:3b:00.0"
    assert ("setDevice", 1) in libraries.runtime.calls
    assert ("cuDevicePrimaryCtxSetFlags", 1, 1) in libraries.bindings.calls, "EXEC would sleep"
    assert libraries.runtime.calls[-2] == ("free", 0), "no context"


def test_every_call_has_the_arguments_that_cuda_wants(libraries: Libraries) -> None:
    driver = CupyDriver(0)
    libraries.runtime.calls.clear()
    assert driver.memory() == (5, 7)
    driver.free(driver.allocate(100))
    driver.free_host(driver.allocate_host(100))
    driver.register_host(1000, 200)
    driver.unregister_host(1000)
    driver.register_host(1000, 200, read_only=True)
    stream = driver.stream(urgent=True)
    timed, sleeping = driver.event(timed=True), driver.event(sleeps=True)
    driver.record(timed, stream)
    driver.wait(stream, timed)
    driver.synchronize(sleeping)
    assert driver.happened(sleeping)
    assert driver.elapsed_ns(timed, timed) == 1_500_000
    driver.copy(1, 2, 3, Copy.TO_DEVICE, stream)
    driver.clear(1, 3, stream)
    assert libraries.runtime.calls == [
        ("memGetInfo",), ("malloc", 100), ("free", 4096), ("hostAlloc", 100, 1), ("freeHost", 8192),
        ("hostRegister", 1000, 200, 1), ("hostUnregister", 1000),
        ("hostRegister", 1000, 200, 1 | 8), ("streamCreateWithPriority", 1, -1000),
        ("eventCreateWithFlags", 0), ("eventCreateWithFlags", 2 | 1), ("eventRecord", 11, 12),
        ("streamWaitEvent", 12, 11), ("eventSynchronize", 11), ("eventQuery", 11),
        ("eventElapsedTime", 11, 11), ("memcpyAsync", 1, 2, 3, 1, 12), ("memsetAsync", 1, 0, 3, 12),
    ]  # fmt: skip


def test_an_event_that_has_not_happened_is_no_error(libraries: Libraries) -> None:
    driver = CupyDriver(0)
    libraries.runtime.answers["eventQuery"] = 600
    assert not driver.happened(11)
    libraries.runtime.answers["eventQuery"] = 719
    with pytest.raises(DeviceLost, match="719"):
        driver.happened(11)


def test_a_gpu_that_does_not_know_read_only_memory_is_not_asked_to_pin_it_so(libraries: Libraries) -> None:
    libraries.runtime.fails["deviceGetAttribute"] = CudaError(1)
    CupyDriver(0).register_host(1000, 200, read_only=True)
    assert libraries.runtime.calls[-1] == ("hostRegister", 1000, 200, 1)


def test_kernels_and_graphs_are_made_and_launched(libraries: Libraries) -> None:
    driver = CupyDriver(0)
    libraries.runtime.calls.clear()
    module = driver.load_module(b"code")
    small, large = driver.function(module, "f", 48 * 1024), driver.function(module, "g", 100_000)
    assert driver.symbol(module, "table") == 23
    driver.begin_capture(5)
    driver.record_at_launch(11, 5)
    driver.launch(small, (1, 2, 3), (4, 5, 6), 7, 8, 5)
    graph = driver.end_capture(5)
    executable = driver.instantiate(graph)
    driver.upload(executable, 5)
    driver.launch_graph(executable, 5)
    driver.destroy_graph(graph)
    driver.destroy_executable(executable)
    driver.unload_module(module)
    assert large == 22
    assert libraries.driver.calls == [
        ("moduleLoadData", b"code"), ("moduleGetFunction", 21, "f"), ("moduleGetFunction", 21, "g"),
        ("funcSetAttribute", 22, 8, 100_000), ("moduleGetGlobal", 21, "table"),
        ("launchKernel", 22, 1, 2, 3, 4, 5, 6, 7, 5, 8, 0),
        ("moduleUnload", 21),
    ]  # fmt: skip
    assert libraries.runtime.calls == [
        ("streamBeginCapture", 5, 1), ("streamEndCapture", 5), ("graphInstantiate", 13),
        ("graphUpload", 14, 5), ("graphLaunch", 14, 5), ("graphDestroy", 13), ("graphExecDestroy", 14),
    ]  # fmt: skip
    assert ("cuEventRecordWithFlags", 11, 5, 1) in libraries.bindings.calls


def test_an_event_that_no_graph_can_have_is_an_error(libraries: Libraries) -> None:
    libraries.bindings.answers["cuEventRecordWithFlags"] = (1,)
    with pytest.raises(EngineError, match="no event can be put into a graph"):
        CupyDriver(0).record_at_launch(1, 2)


def test_a_lost_device_is_known_from_cuda_bindings_too(libraries: Libraries) -> None:
    """Which raise nothing: kernels launched without a graph would fail as well, and the worker go on."""
    driver = CupyDriver(0)
    libraries.bindings.answers |= {"cuEventRecordWithFlags": (700,)}
    with pytest.raises(DeviceLost, match=r"GPU 0: .*CUDA error 700.*restarted"):
        driver.record_at_launch(1, 2)


@pytest.mark.parametrize(("status", "lost"), [(2, False), (98, False), (700, True), (214, True), (719, True)])
def test_errors_that_end_a_context_are_told_from_others(
    libraries: Libraries, status: int, lost: bool
) -> None:
    found = CupyDriver(0).explain(CudaError(status))
    assert isinstance(found, DeviceLost) is lost
    assert f"GPU 0: cudaError {status}" in str(found)


def test_our_own_errors_explain_themselves(libraries: Libraries) -> None:
    error = EngineError("too small")
    assert CupyDriver(0).explain(error) is error


def test_streams_and_events_are_given_back(libraries: Libraries) -> None:
    driver = CupyDriver(0)
    driver.stream()
    driver.event()
    libraries.runtime.calls.clear()
    driver.close()
    driver.close()
    names = [name for name, *_ in libraries.runtime.calls]
    assert names == ["deviceSynchronize", "eventDestroy", "streamDestroy", "deviceSynchronize"]


def test_closing_a_lost_device_raises_nothing(libraries: Libraries, caplog: pytest.LogCaptureFixture) -> None:
    driver = CupyDriver(0)
    libraries.runtime.fails["deviceSynchronize"] = CudaError(700)
    driver.close()
    assert "could not be closed in order" in caplog.text


def test_a_gpu_that_is_not_there_is_named(libraries: Libraries) -> None:
    with pytest.raises(DriverMissing, match="no GPU 2: CUDA counts 2"):
        CupyDriver(2)
    libraries.runtime.answers["getDeviceCount"] = 0
    with pytest.raises(DriverMissing, match="CUDA_VISIBLE_DEVICES"):
        count_devices()
    libraries.runtime.fails["getDeviceCount"] = CudaError(35)
    with pytest.raises(DriverMissing, match=r"no GPU can be used here.*--gpus all"):
        count_devices()


def test_describing_a_gpu_makes_no_context(libraries: Libraries) -> None:
    assert describe_device(1) == ("NVIDIA H200", "0000:3b:00.0", "sm_90", Attributes(*[132] * 6))
    assert {name for name, *_ in libraries.runtime.calls} == {
        "getDeviceProperties", "deviceGetPCIBusId", "deviceGetAttribute"
    }  # fmt: skip
    libraries.runtime.fails["deviceGetAttribute"] = CudaError(1)
    assert describe_device(1)[3] == Attributes(), "as usual, then"


def test_the_signatures_are_those_of_what_is_installed() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is for machines with a GPU")
    from cuda.bindings import driver as bindings

    for module, signatures in (
        (cupy.cuda.runtime, RUNTIME), (cupy.cuda.driver, DRIVER), (bindings, BINDINGS)
    ):  # fmt: skip
        for name, parameters in signatures.items():
            assert names(getattr(module, name)) == parameters.split(), name
    for name, value in CONSTANTS.items():
        assert getattr(cupy.cuda.runtime, name) == value, name
    asked = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert (
        int(asked),
        int(bindings.CUctx_flags.CU_CTX_SCHED_SPIN),
        int(bindings.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL),
        int(bindings.CU_MEMHOSTREGISTER_PORTABLE),
    ) == (
        cupy_driver._MAX_DYNAMIC_SHARED,
        cupy_driver._SCHEDULE_SPIN,
        cupy_driver._RECORD_EXTERNAL,
        cupy_driver._HOST_REGISTER_PORTABLE,
    )
    assert {bindings.CUresult(number).name for number in drivers.LOST} >= {
        "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    }  # fmt: skip


def test_what_is_installed_takes_the_arguments_of_every_call() -> None:
    """Without NVIDIA's driver each call fails for that reason, and not for what it was given."""
    no_driver = r"cudaErrorInsufficientDriver|libcuda|driver library|Function \"cu\w+\" not found"
    pytest.importorskip("cupy", reason="CuPy is for machines with a GPU")
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("a driver is here, which would follow pointers that were made up")
    driver = CupyDriver.__new__(CupyDriver)
    driver._runtime, driver._driver, driver._bindings = cupy_driver._libraries()
    driver.device, driver._streams, driver._events = 0, [], []
    calls: list[Callable[[], object]] = [
        driver.attach, driver.bus_id, driver.memory, driver._spin_when_waiting, driver.stream, driver.event,
        lambda: driver.allocate(256), lambda: driver.free(256),
        lambda: driver.allocate_host(256), lambda: driver.free_host(256),
        lambda: driver.register_host(4096, 4096), lambda: driver.unregister_host(4096),
        lambda: driver.record(1, 2), lambda: driver.wait(1, 2), lambda: driver.synchronize(1),
        lambda: driver.elapsed_ns(1, 2), lambda: driver.clear(1, 2, 3),
        lambda: driver.copy(1, 2, 3, Copy.ON_DEVICE, 4),
        lambda: driver.load_module(b"code"), lambda: driver.unload_module(1),
        lambda: driver.function(1, "f", 0), lambda: driver.symbol(1, "table"),
        lambda: driver._driver.funcSetAttribute(1, 8, 50_000),
        lambda: driver.launch(1, (1, 1, 1), (32, 1, 1), 0, 2, 3),
        lambda: driver.begin_capture(1), lambda: driver.record_at_launch(1, 2),
        lambda: driver.end_capture(1), lambda: driver.instantiate(1),
        lambda: driver.upload(1, 2), lambda: driver.launch_graph(1, 2),
        lambda: driver.destroy_graph(1), lambda: driver.destroy_executable(1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RuntimeError, match=no_driver):
            call()


def names(function: Any) -> list[str]:
    """Return a function's parameters by the first line of its documentation, as Cython writes it."""
    text = inspect.getdoc(function) or ""
    (inside,) = re.findall(r"^\w+\((.*?)\)", text.splitlines()[0])
    return [part.split("=")[0].strip().split(" ")[-1] for part in inside.split(",") if part.strip()]
