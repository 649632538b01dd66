"""The driver of a real GPU: CuPy's thin bindings of CUDA, and cuda-bindings where CuPy stops.

CuPy has the runtime API (memory, streams, events, copies, capture and launch of graphs) and, of the driver
API, modules and kernel launches; both release the interpreter's lock in calls that may block. cuda-bindings
adds events in graphs, how the host waits, and NVRTC.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mainspring import extras
from mainspring.compiler.artifact.target import ATTRIBUTES, Attributes
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.compiling import compile_with_nvrtc
from mainspring.worker.engines.cuda.driver import (
    SHARED_WITHOUT_ASKING,
    Copy,
    Driver,
    DriverMissing,
    Extent,
    MemoryState,
    explained,
    failure,
)
from mainspring.worker.engines.cuda.numa import normal_bus_id

LOG = logging.getLogger(__name__)

_HOST_REGISTER_PORTABLE = 1
_HOST_REGISTER_READ_ONLY = 8
_READ_ONLY_SUPPORTED = 113
"""``cudaDevAttrHostRegisterReadOnlySupported``."""
_NOT_READY = 600
"""``cudaErrorNotReady``."""
_MAX_DYNAMIC_SHARED = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``."""
_SCHEDULE_SPIN = 1
"""``CU_CTX_SCHED_SPIN``."""
_RECORD_EXTERNAL = 1
"""``CU_EVENT_RECORD_EXTERNAL``."""
_MOST_URGENT = -1000
"""CUDA takes the nearest existing priority; the least urgent is 0."""


class CupyDriver:
    """One GPU."""

    def __init__(self, device: int) -> None:
        """Open the GPU's primary context; raise `DriverMissing` if that is impossible."""
        count = count_devices()
        if not 0 <= device < count:
            raise DriverMissing(f"there is no GPU {device}: CUDA counts {count}, beginning with 0")
        self._runtime, self._driver, self._bindings = _libraries()
        self.device = device
        self._streams: list[int] = []
        self._events: list[int] = []
        self._spin_when_waiting()
        self.attach()
        self._properties = self._runtime.getDeviceProperties(device)
        self._pins_read_only = bool(_attribute(self._runtime, device, _READ_ONLY_SUPPORTED))
        # The first call makes the context, whose memory must be taken before the free memory is counted.
        self._runtime.free(0)

    def attach(self) -> None:
        """See `Driver`, as for all that follows."""
        self._runtime.setDevice(self.device)

    def name(self) -> str:
        """See `Driver`."""
        return str(self._properties["name"].decode())

    def arch(self) -> str:
        """See `Driver`."""
        return _arch(self._properties)

    def bus_id(self) -> str:
        """See `Driver`."""
        return normal_bus_id(self._runtime.deviceGetPCIBusId(self.device))

    # --- memory ---

    def memory(self) -> MemoryState:
        """See `Driver`."""
        return MemoryState(*self._runtime.memGetInfo())

    def allocate(self, size: int) -> int:
        """See `Driver`."""
        return int(self._runtime.malloc(size))

    def free(self, address: int) -> None:
        """See `Driver`."""
        self._runtime.free(address)

    def allocate_host(self, size: int) -> int:
        """See `Driver`."""
        return int(self._runtime.hostAlloc(size, self._runtime.hostAllocPortable))

    def free_host(self, address: int) -> None:
        """See `Driver`."""
        self._runtime.freeHost(address)

    def register_host(self, address: int, size: int, *, read_only: bool = False) -> None:
        """See `Driver`."""
        flags = _HOST_REGISTER_PORTABLE
        if read_only and self._pins_read_only:
            flags |= _HOST_REGISTER_READ_ONLY
        self._runtime.hostRegister(address, size, flags)

    def unregister_host(self, address: int) -> None:
        """See `Driver`."""
        self._runtime.hostUnregister(address)

    # --- streams, events, copies ---

    def stream(self, *, urgent: bool = False) -> int:
        """See `Driver`."""
        flags, priority = self._runtime.streamNonBlocking, _MOST_URGENT if urgent else 0
        self._streams.append(int(self._runtime.streamCreateWithPriority(flags, priority)))
        return self._streams[-1]

    def event(self, *, timed: bool = False, sleeps: bool = False) -> int:
        """See `Driver`."""
        flags = 0 if timed else self._runtime.eventDisableTiming
        flags |= self._runtime.eventBlockingSync if sleeps else 0
        event = int(self._runtime.eventCreateWithFlags(flags))
        self._events.append(event)
        return event

    def record(self, event: int, stream: int) -> None:
        """See `Driver`."""
        self._runtime.eventRecord(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """See `Driver`."""
        self._runtime.streamWaitEvent(stream, event)

    def happened(self, event: int) -> bool:
        """See `Driver`."""
        status = int(self._runtime.eventQuery(event))
        if status not in (0, _NOT_READY):
            raise failure(self.device, status, f"an event can't be asked for (CUDA error {status})")
        return status == 0

    def synchronize(self, event: int) -> None:
        """See `Driver`."""
        self._runtime.eventSynchronize(event)

    def elapsed_ns(self, begin: int, end: int) -> int:
        """See `Driver`."""
        return round(float(self._runtime.eventElapsedTime(begin, end)) * 1e6)

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        """See `Driver`."""
        self._runtime.memcpyAsync(target, source, size, kind, stream)

    def clear(self, address: int, size: int, stream: int) -> None:
        """See `Driver`."""
        self._runtime.memsetAsync(address, 0, size, stream)

    # --- kernels and graphs ---

    def compile(self, source: str, arch: str) -> bytes:
        """See `Driver`."""
        return compile_with_nvrtc(source, arch)

    def load_module(self, image: bytes) -> int:
        """See `Driver`."""
        return int(self._driver.moduleLoadData(image))

    def unload_module(self, module: int) -> None:
        """See `Driver`."""
        self._driver.moduleUnload(module)

    def function(self, module: int, symbol: str, shared_bytes: int) -> int:
        """See `Driver`."""
        function = int(self._driver.moduleGetFunction(module, symbol))
        if shared_bytes > SHARED_WITHOUT_ASKING:
            self._driver.funcSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes)
        return function

    def symbol(self, module: int, name: str) -> int:
        """See `Driver`."""
        return int(self._driver.moduleGetGlobal(module, name))

    def launch(
        self, function: int, grid: Extent, block: Extent, shared_bytes: int, parameters: int, stream: int
    ) -> None:
        """See `Driver`."""
        self._driver.launchKernel(function, *grid, *block, shared_bytes, stream, parameters, 0)

    def begin_capture(self, stream: int) -> None:
        """See `Driver`."""
        # Of this thread alone: other threads may use the device meanwhile.
        self._runtime.streamBeginCapture(stream, self._runtime.streamCaptureModeThreadLocal)

    def record_at_launch(self, event: int, stream: int) -> None:
        """See `Driver`."""
        (status,) = self._bindings.cuEventRecordWithFlags(event, stream, _RECORD_EXTERNAL)
        if int(status):
            raise failure(
                self.device, int(status), f"no event can be put into a graph (CUDA error {int(status)})"
            )

    def end_capture(self, stream: int) -> int:
        """See `Driver`."""
        return int(self._runtime.streamEndCapture(stream))

    def instantiate(self, graph: int) -> int:
        """See `Driver`."""
        return int(self._runtime.graphInstantiate(graph))

    def upload(self, executable: int, stream: int) -> None:
        """See `Driver`."""
        self._runtime.graphUpload(executable, stream)

    def launch_graph(self, executable: int, stream: int) -> None:
        """See `Driver`."""
        self._runtime.graphLaunch(executable, stream)

    def destroy_graph(self, graph: int) -> None:
        """See `Driver`."""
        self._runtime.graphDestroy(graph)

    def destroy_executable(self, executable: int) -> None:
        """See `Driver`."""
        self._runtime.graphExecDestroy(executable)

    # --- the end ---

    def explain(self, error: Exception) -> EngineError:
        """See `Driver`."""
        return explained(self.device, error)

    def close(self) -> None:
        """See `Driver`."""
        try:
            self._runtime.deviceSynchronize()
            for event in self._events:
                self._runtime.eventDestroy(event)
            for stream in self._streams:
                self._runtime.streamDestroy(stream)
        except RuntimeError as error:
            # Nothing can be released on a lost device; the driver releases all of it by itself.
            LOG.warning("GPU %d could not be closed in order: %s", self.device, error)
        self._events.clear()
        self._streams.clear()

    def _spin_when_waiting(self) -> None:
        """Have EXEC spin for its end: an interrupt would come 20 us later."""
        (status,) = self._bindings.cuInit(0)
        if int(status) == 0:
            (status,) = self._bindings.cuDevicePrimaryCtxSetFlags(self.device, _SCHEDULE_SPIN)
        if int(status) != 0:
            LOG.warning("GPU %d: waiting threads may sleep (CUDA error %d)", self.device, int(status))


def open_device(device: int) -> Driver:
    """Return the driver of a GPU; raise `DriverMissing` if it can't be used."""
    return CupyDriver(device)


def missing() -> str:
    """Return why CuPy can't be imported here, and what would help; nothing if it can."""
    try:
        _libraries()
    except DriverMissing as error:
        return str(error)
    return ""


def count_devices() -> int:
    """Return how many GPUs CUDA can use; raise `DriverMissing`, which says why, if none."""
    runtime, _, _ = _libraries()
    try:
        count = int(runtime.getDeviceCount())
    except RuntimeError as error:
        raise DriverMissing(
            f"no GPU can be used here ({error}); CuPy needs NVIDIA's driver for CUDA 13 (580 or newer), and "
            "in a container the option --gpus all; without CuPy the driver 525 is enough"
        ) from error
    if not count:
        raise DriverMissing("CUDA finds no GPU here; CUDA_VISIBLE_DEVICES may hide them")
    return count


def describe_device(device: int) -> tuple[str, str, str, Attributes]:
    """Return a GPU's name, place on the PCI bus, architecture and attributes; no context is made."""
    runtime, _, _ = _libraries()
    properties = runtime.getDeviceProperties(device)
    name = str(properties["name"].decode())
    told = {what: _attribute(runtime, device, number) for what, number in ATTRIBUTES.items()}
    return name, normal_bus_id(runtime.deviceGetPCIBusId(device)), _arch(properties), Attributes(**told)


def _attribute(runtime: Any, device: int, number: int) -> int:
    """Return an attribute of a device; 0 if its driver does not say."""
    try:
        return int(runtime.deviceGetAttribute(number, device))
    except RuntimeError as error:
        LOG.info("attribute %d of GPU %d is not known: %s", number, device, error)
        return 0


def _arch(properties: Mapping[str, Any]) -> str:
    return f"sm_{properties['major']}{properties['minor']}"


def _libraries() -> tuple[Any, Any, Any]:
    """Return CuPy's runtime and driver API and cuda-bindings'; raise `DriverMissing` without them."""
    try:
        from cuda.bindings import driver as bindings
        from cupy.cuda import driver, runtime
    except ImportError as error:
        raise DriverMissing(
            f"a GPU needs CuPy and cuda-bindings ({error}); {extras.command('gpu')}"
        ) from error
    return runtime, driver, bindings
