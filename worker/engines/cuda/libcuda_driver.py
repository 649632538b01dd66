"""The driver of a real GPU through ``libcuda.so.1`` alone, which NVIDIA's driver brings, without a package.

The calls are those of the driver API in CUDA 12.0, which every later driver exports too. Where a function has
several versions, `SIGNATURES` names the export that ``cuda.h`` maps the plain name to. ctypes releases the
interpreter's lock in each call.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from mainspring.compiler.artifact.target import ATTRIBUTES, Attributes
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.compiling import compile_with_nvrtc
from mainspring.worker.engines.cuda.driver import (
    LIBCUDA,
    SHARED_WITHOUT_ASKING,
    Copy,
    Driver,
    DriverMissing,
    Extent,
    MemoryState,
    explained,
)
from mainspring.worker.engines.cuda.numa import normal_bus_id

LOG = logging.getLogger(__name__)

DEFAULT_PATH = "libcuda.so.1"
LEAST_CUDA = 12_000
"""Oldest version that is supported, as CUDA numbers them: 12.0, of drivers from 525 on."""

NOT_READY = 600
"""Result of ``cuEventQuery`` before the event has happened."""

_HANDLE, _ADDRESS = c_void_p, c_uint64
_NEW_HANDLE, _NEW_ADDRESS, _NEW_INT = POINTER(c_void_p), POINTER(c_uint64), POINTER(c_int)

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_NEW_INT,),
    "cuDeviceGetCount": (_NEW_INT,),
    "cuDeviceGet": (_NEW_INT, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_NEW_INT, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxSetFlags_v2": (c_int, c_uint),
    "cuDevicePrimaryCtxRetain": (_NEW_HANDLE, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuCtxGetStreamPriorityRange": (_NEW_INT, _NEW_INT),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (_NEW_ADDRESS, c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemHostAlloc": (_NEW_HANDLE, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuStreamCreateWithPriority": (_NEW_HANDLE, c_uint, c_int),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, c_uint),
    "cuEventCreate": (_NEW_HANDLE, c_uint),
    "cuEventDestroy_v2": (_HANDLE,),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventRecordWithFlags": (_HANDLE, _HANDLE, c_uint),
    "cuEventQuery": (_HANDLE,),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (POINTER(c_float), _HANDLE, _HANDLE),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, c_void_p, c_size_t, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _ADDRESS, c_size_t, _HANDLE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, c_size_t, _HANDLE),
    "cuMemsetD8Async": (_ADDRESS, c_ubyte, c_size_t, _HANDLE),
    "cuModuleLoadData": (_NEW_HANDLE, c_void_p),
    "cuModuleUnload": (_HANDLE,),
    "cuModuleGetFunction": (_NEW_HANDLE, _HANDLE, c_char_p),
    "cuModuleGetGlobal_v2": (_NEW_ADDRESS, POINTER(c_size_t), _HANDLE, c_char_p),
    "cuFuncSetAttribute": (_HANDLE, c_int, c_int),
    "cuLaunchKernel": (_HANDLE, *[c_uint] * 7, _HANDLE, c_void_p, c_void_p),
    "cuStreamBeginCapture_v2": (_HANDLE, c_int),
    "cuStreamEndCapture": (_HANDLE, _NEW_HANDLE),
    "cuGraphInstantiateWithFlags": (_NEW_HANDLE, _HANDLE, ctypes.c_ulonglong),
    "cuGraphUpload": (_HANDLE, _HANDLE),
    "cuGraphLaunch": (_HANDLE, _HANDLE),
    "cuGraphDestroy": (_HANDLE,),
    "cuGraphExecDestroy": (_HANDLE,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}
"""Parameters of each function that is called; all return a ``CUresult``, an int."""

CONSTANTS = {
    "CU_CTX_SCHED_SPIN": 1,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 75,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 76,
    "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED": 113,
    "CU_EVENT_BLOCKING_SYNC": 1,
    "CU_EVENT_DISABLE_TIMING": 2,
    "CU_EVENT_RECORD_EXTERNAL": 1,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 8,
    "CU_MEMHOSTALLOC_PORTABLE": 1,
    "CU_MEMHOSTREGISTER_PORTABLE": 1,
    "CU_MEMHOSTREGISTER_READ_ONLY": 8,
    "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1,
    "CU_STREAM_NON_BLOCKING": 1,
}
"""Values of ``cuda.h`` by their names there."""

REMEDIES = {
    2: "end what else uses the GPU (nvidia-smi names it), or lower what the worker reserves of it",
    34: "that library is the toolkit's stub for linking: NVIDIA's driver itself is not installed",
    46: "another process holds the GPU for itself: end it, or nvidia-smi -c 0",
    100: "no GPU is there, or CUDA_VISIBLE_DEVICES hides it",
    200: "the machine code is broken, or for a newer driver: compile the model again, or update the driver",
    209: "the machine code is for other GPUs: compile the model for this one's architecture",
    222: "the kernels come from a newer CUDA than the driver's: update NVIDIA's driver",
    500: "kernels and launch plans do not belong together: compile the model again",
    802: "start nvidia-fabricmanager",
    803: "library and kernel module are of different drivers: restart the machine",
    804: "the compatibility package does not work with this GPU: install the driver itself",
}
"""Remedies for errors of CUDA, by their numbers."""


class CudaCallFailed(RuntimeError):
    """A call of CUDA failed; the text names the call and the error, and says what would help."""

    def __init__(self, call: str, status: int, error: str) -> None:
        """``status`` is the call's ``CUresult``, ``error`` its name and description."""
        remedy = f"; {REMEDIES[status]}" if status in REMEDIES else ""
        super().__init__(f"{call} failed: {error}{remedy}")
        self.status = status


class LibcudaDriver:
    """One GPU."""

    def __init__(self, device: int) -> None:
        """Open the GPU's primary context; raise `DriverMissing` if that is impossible."""
        count = count_devices()
        if not 0 <= device < count:
            raise DriverMissing(f"there is no GPU {device}: CUDA counts {count}, beginning with 0")
        self.device = device
        self._cuda = _started()
        self._handle = _new(c_int, self._cuda.cuDeviceGet, device)
        supported = CONSTANTS["CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED"]
        self._pins_read_only = bool(_attribute(self._cuda, self._handle, supported))
        self._streams: list[int] = []
        self._events: list[int] = []
        self._spin_when_waiting()
        # Its memory is taken before the free memory is counted.
        self._context: int | None = _new(c_void_p, self._cuda.cuDevicePrimaryCtxRetain, self._handle)
        LOG.info("GPU %d is used through %s", device, self._cuda._name)
        self.attach()
        least, greatest = c_int(), c_int()
        self._cuda.cuCtxGetStreamPriorityRange(byref(least), byref(greatest))
        self._most_urgent = greatest.value

    def attach(self) -> None:
        """See `Driver`, as for all that follows."""
        self._cuda.cuCtxSetCurrent(self._context)

    def name(self) -> str:
        """See `Driver`."""
        return _name(self._cuda, self._handle)

    def arch(self) -> str:
        """See `Driver`."""
        return _arch(self._cuda, self._handle)

    def bus_id(self) -> str:
        """See `Driver`."""
        return _bus_id(self._cuda, self._handle)

    # --- memory ---

    def memory(self) -> MemoryState:
        """See `Driver`."""
        free, total = c_size_t(), c_size_t()
        self._cuda.cuMemGetInfo_v2(byref(free), byref(total))
        return MemoryState(free.value, total.value)

    def allocate(self, size: int) -> int:
        """See `Driver`."""
        return _new(c_uint64, self._cuda.cuMemAlloc_v2, size)

    def free(self, address: int) -> None:
        """See `Driver`."""
        self._cuda.cuMemFree_v2(address)

    def allocate_host(self, size: int) -> int:
        """See `Driver`."""
        return _new(c_void_p, self._cuda.cuMemHostAlloc, size, CONSTANTS["CU_MEMHOSTALLOC_PORTABLE"])

    def free_host(self, address: int) -> None:
        """See `Driver`."""
        self._cuda.cuMemFreeHost(address)

    def register_host(self, address: int, size: int, *, read_only: bool = False) -> None:
        """See `Driver`."""
        flags = CONSTANTS["CU_MEMHOSTREGISTER_PORTABLE"]
        if read_only and self._pins_read_only:
            flags |= CONSTANTS["CU_MEMHOSTREGISTER_READ_ONLY"]
        self._cuda.cuMemHostRegister_v2(address, size, flags)

    def unregister_host(self, address: int) -> None:
        """See `Driver`."""
        self._cuda.cuMemHostUnregister(address)

    # --- streams, events, copies ---

    def stream(self, *, urgent: bool = False) -> int:
        """See `Driver`."""
        priority = self._most_urgent if urgent else 0
        create = self._cuda.cuStreamCreateWithPriority
        self._streams.append(_new(c_void_p, create, CONSTANTS["CU_STREAM_NON_BLOCKING"], priority))
        return self._streams[-1]

    def event(self, *, timed: bool = False, sleeps: bool = False) -> int:
        """See `Driver`."""
        flags = 0 if timed else CONSTANTS["CU_EVENT_DISABLE_TIMING"]
        flags |= CONSTANTS["CU_EVENT_BLOCKING_SYNC"] if sleeps else 0
        self._events.append(_new(c_void_p, self._cuda.cuEventCreate, flags))
        return self._events[-1]

    def record(self, event: int, stream: int) -> None:
        """See `Driver`."""
        self._cuda.cuEventRecord(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """See `Driver`."""
        self._cuda.cuStreamWaitEvent(stream, event, 0)

    def happened(self, event: int) -> bool:
        """See `Driver`."""
        try:
            self._cuda.cuEventQuery(event)
        except CudaCallFailed as error:
            if error.status == NOT_READY:
                return False
            raise
        return True

    def synchronize(self, event: int) -> None:
        """See `Driver`."""
        self._cuda.cuEventSynchronize(event)

    def elapsed_ns(self, begin: int, end: int) -> int:
        """See `Driver`."""
        milliseconds = c_float()
        self._cuda.cuEventElapsedTime(byref(milliseconds), begin, end)
        return round(milliseconds.value * 1e6)

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        """See `Driver`."""
        if kind == Copy.TO_DEVICE:
            self._cuda.cuMemcpyHtoDAsync_v2(target, source, size, stream)
        elif kind == Copy.TO_HOST:
            self._cuda.cuMemcpyDtoHAsync_v2(target, source, size, stream)
        else:
            self._cuda.cuMemcpyDtoDAsync_v2(target, source, size, stream)

    def clear(self, address: int, size: int, stream: int) -> None:
        """See `Driver`."""
        self._cuda.cuMemsetD8Async(address, 0, size, stream)

    # --- kernels and graphs ---

    def compile(self, source: str, arch: str) -> bytes:
        """See `Driver`."""
        return compile_with_nvrtc(source, arch)

    def load_module(self, image: bytes) -> int:
        """See `Driver`."""
        return _new(c_void_p, self._cuda.cuModuleLoadData, image)

    def unload_module(self, module: int) -> None:
        """See `Driver`."""
        self._cuda.cuModuleUnload(module)

    def function(self, module: int, symbol: str, shared_bytes: int) -> int:
        """See `Driver`."""
        function = _new(c_void_p, self._cuda.cuModuleGetFunction, module, symbol.encode())
        if shared_bytes > SHARED_WITHOUT_ASKING:
            asked = CONSTANTS["CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"]
            self._cuda.cuFuncSetAttribute(function, asked, shared_bytes)
        return function

    def symbol(self, module: int, name: str) -> int:
        """See `Driver`."""
        size = c_size_t()
        return _new(c_uint64, self._cuda.cuModuleGetGlobal_v2, byref(size), module, name.encode())

    def launch(
        self, function: int, grid: Extent, block: Extent, shared_bytes: int, parameters: int, stream: int
    ) -> None:
        """See `Driver`."""
        self._cuda.cuLaunchKernel(function, *grid, *block, shared_bytes, stream, parameters, None)

    def begin_capture(self, stream: int) -> None:
        """See `Driver`."""
        # Of this thread alone: other threads may use the device meanwhile.
        self._cuda.cuStreamBeginCapture_v2(stream, CONSTANTS["CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"])

    def record_at_launch(self, event: int, stream: int) -> None:
        """See `Driver`."""
        self._cuda.cuEventRecordWithFlags(event, stream, CONSTANTS["CU_EVENT_RECORD_EXTERNAL"])

    def end_capture(self, stream: int) -> int:
        """See `Driver`."""
        graph = c_void_p()
        self._cuda.cuStreamEndCapture(stream, byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        """See `Driver`."""
        return _new(c_void_p, self._cuda.cuGraphInstantiateWithFlags, graph, 0)

    def upload(self, executable: int, stream: int) -> None:
        """See `Driver`."""
        self._cuda.cuGraphUpload(executable, stream)

    def launch_graph(self, executable: int, stream: int) -> None:
        """See `Driver`."""
        self._cuda.cuGraphLaunch(executable, stream)

    def destroy_graph(self, graph: int) -> None:
        """See `Driver`."""
        self._cuda.cuGraphDestroy(graph)

    def destroy_executable(self, executable: int) -> None:
        """See `Driver`."""
        self._cuda.cuGraphExecDestroy(executable)

    # --- the end ---

    def explain(self, error: Exception) -> EngineError:
        """See `Driver`."""
        return explained(self.device, error)

    def close(self) -> None:
        """See `Driver`; give the primary context back too."""
        if self._context is None:
            return
        try:
            self.attach()
            self._cuda.cuCtxSynchronize()
            for event in self._events:
                self._cuda.cuEventDestroy_v2(event)
            for stream in self._streams:
                self._cuda.cuStreamDestroy_v2(stream)
            self._cuda.cuDevicePrimaryCtxRelease_v2(self._handle)
        except CudaCallFailed as error:
            # Nothing can be released on a lost device; the driver releases all of it by itself.
            LOG.warning("GPU %d could not be closed in order: %s", self.device, error)
        self._context = None
        self._events.clear()
        self._streams.clear()

    def _spin_when_waiting(self) -> None:
        """Have EXEC spin for its end: an interrupt would come 20 us later."""
        try:
            self._cuda.cuDevicePrimaryCtxSetFlags_v2(self._handle, CONSTANTS["CU_CTX_SCHED_SPIN"])
        except CudaCallFailed as error:
            LOG.warning("GPU %d: waiting threads may sleep (%s)", self.device, error)


def open_device(device: int) -> Driver:
    """Return the driver of a GPU; raise `DriverMissing`, or another `EngineError`, if it can't be used."""
    try:
        return LibcudaDriver(device)
    except CudaCallFailed as error:
        raise explained(device, error) from error


def missing() -> str:
    """Return why libcuda can't be loaded here, and what would help; nothing if it can."""
    try:
        _library(os.environ.get(LIBCUDA) or DEFAULT_PATH)
    except DriverMissing as error:
        return str(error)
    return ""


def count_devices() -> int:
    """Return how many GPUs CUDA can use; raise `DriverMissing`, which says why, if none."""
    count = _new(c_int, _started().cuDeviceGetCount)
    if not count:
        raise DriverMissing("CUDA finds no GPU here; CUDA_VISIBLE_DEVICES may hide them")
    return count


def describe_device(device: int) -> tuple[str, str, str, Attributes]:
    """Return a GPU's name, place on the PCI bus, architecture and attributes; no context is made."""
    cuda = _started()
    handle = _new(c_int, cuda.cuDeviceGet, device)
    told = {name: _attribute(cuda, handle, number) for name, number in ATTRIBUTES.items()}
    return _name(cuda, handle), _bus_id(cuda, handle), _arch(cuda, handle), Attributes(**told)


def _started() -> Any:
    """Return libcuda, ready for all calls; raise `DriverMissing`, which says why, if there is no GPU."""
    cuda = _library(os.environ.get(LIBCUDA) or DEFAULT_PATH)
    try:
        version = _new(c_int, cuda.cuDriverGetVersion)
        if version < LEAST_CUDA:
            newest = f"{version // 1000}.{version % 1000 // 10}"
            raise DriverMissing(f"NVIDIA's driver is for CUDA {newest} at most: install driver 525 or newer")
        cuda.cuInit(0)
    except CudaCallFailed as error:
        raise DriverMissing(f"no GPU can be used here: {error}; in a container, use --gpus all") from error
    return cuda


@functools.cache
def _library(path: str) -> Any:
    """Return libcuda, whose functions raise `CudaCallFailed`; raise `DriverMissing` if it can't be used."""
    try:
        cuda = ctypes.CDLL(path)
    except OSError as error:
        raise DriverMissing(
            f"NVIDIA's driver can't be loaded ({error}); install driver 525 or newer, or in a container use "
            "--gpus all"
        ) from error

    def check(status: int, function: Any, _arguments: tuple[Any, ...]) -> int:
        if status:
            raise CudaCallFailed(function.__name__, status, _describe(cuda, status))
        return status

    for name, parameters in SIGNATURES.items():
        try:
            function = getattr(cuda, name)
        except AttributeError:
            raise DriverMissing(f"{path} has no {name}: install NVIDIA's driver 525 or newer") from None
        function.argtypes, function.restype = parameters, c_int
        if not name.startswith("cuGetError"):
            function.errcheck = check
    return cuda


def _describe(cuda: Any, status: int) -> str:
    """Return the name, number and description of an error, as far as the driver knows them."""
    name, text = c_char_p(), c_char_p()
    cuda.cuGetErrorName(status, byref(name))
    cuda.cuGetErrorString(status, byref(text))
    words = f": {text.value.decode(errors='replace')}" if text.value else ""
    return f"{(name.value or b'CUDA error').decode()} ({status}){words}"


def _new(kind: Any, call: Any, *arguments: Any) -> int:
    """Return the number that a call puts into its first argument."""
    made = kind()
    call(byref(made), *arguments)
    return int(made.value or 0)


def _name(cuda: Any, handle: int) -> str:
    text = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(text, len(text), handle)
    return text.value.decode(errors="replace")


def _bus_id(cuda: Any, handle: int) -> str:
    text = ctypes.create_string_buffer(32)
    cuda.cuDeviceGetPCIBusId(text, len(text), handle)
    return normal_bus_id(text.value.decode())


def _attribute(cuda: Any, handle: int, number: int) -> int:
    """Return an attribute of a device; 0 if its driver does not say."""
    try:
        return _new(c_int, cuda.cuDeviceGetAttribute, number, handle)
    except CudaCallFailed as error:
        LOG.info("an attribute of GPU %d is not known: %s", handle, error)
        return 0


def _arch(cuda: Any, handle: int) -> str:
    major, minor = (
        _new(
            c_int,
            cuda.cuDeviceGetAttribute,
            CONSTANTS[f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"],
            handle,
        )
        for part in ("MAJOR", "MINOR")
    )
    return f"sm_{major}{minor}"
