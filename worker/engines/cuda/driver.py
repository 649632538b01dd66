"""The one interface to a GPU: every call of CUDA that the worker makes (Clockwork, section 5.2).

Handles (streams, events, modules, functions, graphs) and addresses are integers, as CUDA's own are pointers.
Nothing here decides anything: the calling modules allocate, order and wait. So a fake driver can record the
calls and play them in virtual time.

Work on one stream runs in order, work on different streams concurrently. Streams do not wait for the legacy
default stream. Calls return before the device has done the work unless their docstring says otherwise, and
release the interpreter's lock where they may take long.
"""

from __future__ import annotations

import importlib
import os
from enum import IntEnum
from typing import NamedTuple, Protocol, cast

from mainspring.compiler.artifact.target import Attributes
from mainspring.worker.engine import DeviceLost, EngineError

LIBCUDA = "MAINSPRING_LIBCUDA"
"""Environment variable with the path of the library that is used instead of CuPy."""
BINDINGS = "MAINSPRING_CUDA_BINDINGS"
"""Environment variable with the name of a module that stands in for CUDA, as a rehearsal has one."""
SHARED_WITHOUT_ASKING = 48 * 1024
"""Bytes of shared memory that a kernel may have without asking for more."""
LOST = frozenset(
    {46, 101, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}
)
"""Errors after which a context no longer works: invalid addresses, uncorrectable memory, launch failures,
time-outs, a lost device or server of a device. The runtime and the driver API number them alike."""

Extent = tuple[int, int, int]
"""Blocks of a grid or threads of a block, along x, y and z."""


class Copy(IntEnum):
    """The direction of a copy; the values are those of cudaMemcpyKind."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3


class MemoryState(NamedTuple):
    """A device's memory."""

    free_bytes: int
    total_bytes: int


class Driver(Protocol):
    """One device. A thread calls `attach` before any other method; it may call it again."""

    device: int
    """Its number as CUDA counts."""

    def attach(self) -> None:
        """Make this device the calling thread's."""

    def name(self) -> str:
        """The maker's name of the device."""

    def arch(self) -> str:
        """The architecture that kernels are compiled for, such as ``sm_90``."""

    def bus_id(self) -> str:
        """The device's place on the PCI bus, such as ``0000:3b:00.0``."""

    # --- memory ---

    def memory(self) -> MemoryState:
        """The device's memory: what is free now, and the total."""

    def allocate(self, size: int) -> int:
        """Return the address of device memory, a multiple of 256."""

    def free(self, address: int) -> None:
        """Give device memory back."""

    def allocate_host(self, size: int) -> int:
        """Return the address of pinned host memory."""

    def free_host(self, address: int) -> None:
        """Give pinned host memory back."""

    def register_host(self, address: int, size: int, *, read_only: bool = False) -> None:
        """Pin host memory that exists, so that copies from it are asynchronous and fast.

        Memory that this process has mapped to read is ``read_only``; not every driver pins such memory.
        """

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""

    # --- streams, events, copies ---

    def stream(self, *, urgent: bool = False) -> int:
        """Return a new stream; kernels of an ``urgent`` stream precede those of others."""

    def event(self, *, timed: bool = False, sleeps: bool = False) -> int:
        """Return a new event; a waiting thread spins, or ``sleeps`` until the device interrupts."""

    def record(self, event: int, stream: int) -> None:
        """Have the event happen when the stream has done all of its earlier work."""

    def wait(self, stream: int, event: int) -> None:
        """Have the stream's later work wait for the event's last recording."""

    def happened(self, event: int) -> bool:
        """Return whether the event's last recording has happened; True if nobody has recorded it. Does not
        wait."""

    def synchronize(self, event: int) -> None:
        """Block the calling thread until the event has happened."""

    def elapsed_ns(self, begin: int, end: int) -> int:
        """Time on the device between two timed events that have happened."""

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        """Copy bytes."""

    def clear(self, address: int, size: int, stream: int) -> None:
        """Write zeros to device memory."""

    # --- kernels and graphs ---

    def compile(self, source: str, arch: str) -> bytes:
        """Return the machine code of CUDA C++; this takes seconds."""

    def load_module(self, image: bytes) -> int:
        """Load machine code onto the device."""

    def unload_module(self, module: int) -> None:
        """Unload machine code that no kernel runs."""

    def function(self, module: int, symbol: str, shared_bytes: int) -> int:
        """Return a kernel that may use ``shared_bytes`` of dynamic shared memory."""

    def symbol(self, module: int, name: str) -> int:
        """Return the device address of a module's variable; kernels may write it through this address."""

    def launch(
        self, function: int, grid: Extent, block: Extent, shared_bytes: int, parameters: int, stream: int
    ) -> None:
        """Launch a kernel; ``parameters`` is the address of an array of the arguments' addresses."""

    def begin_capture(self, stream: int) -> None:
        """Record the stream's later work instead of doing it."""

    def record_at_launch(self, event: int, stream: int) -> None:
        """Have the event happen at this place of the graph under capture, at each launch."""

    def end_capture(self, stream: int) -> int:
        """Return the recorded work as a graph; work recorded in order depends on each other in that order."""

    def instantiate(self, graph: int) -> int:
        """Return the graph, ready to launch; this allocates."""

    def upload(self, executable: int, stream: int) -> None:
        """Prepare the device for a graph's first launch."""

    def launch_graph(self, executable: int, stream: int) -> None:
        """Launch a graph."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy a captured graph."""

    def destroy_executable(self, executable: int) -> None:
        """Destroy a graph that was ready to launch and does not run."""

    # --- the end ---

    def explain(self, error: Exception) -> EngineError:
        """Return what an exception of this driver means: `DeviceLost` if no later call can succeed."""

    def close(self) -> None:
        """Wait for all work and give streams and events back."""


class DriverMissing(EngineError):
    """There is no GPU here, or no library to use it; the text says which, and what would help."""


class Bindings(Protocol):
    """A way to use CUDA from Python: one of the modules `cupy_driver` and `libcuda_driver`."""

    def missing(self) -> str:
        """Return why this way is not there, without asking for a GPU; nothing if it is."""

    def count_devices(self) -> int:
        """Return how many GPUs CUDA can use; raise `DriverMissing`, which says why, if none."""

    def describe_device(self, device: int) -> tuple[str, str, str, Attributes]:
        """Return a GPU's name, place on the PCI bus, architecture and attributes; no context is made."""

    def open_device(self, device: int) -> Driver:
        """Return the driver of a GPU; raise `EngineError` if it can't be used."""


def choose_bindings() -> Bindings:
    """Return CuPy where it is installed, else libcuda alone; raise `DriverMissing` if neither is there.

    The environment variable `LIBCUDA` chooses libcuda, and says where it is; `BINDINGS` names what is used in
    place of both.
    """
    if named := os.environ.get(BINDINGS):
        return cast(Bindings, importlib.import_module(named))
    # CuPy takes a second to import.
    from mainspring.worker.engines.cuda import cupy_driver, libcuda_driver

    bindings: tuple[Bindings, ...] = (
        (libcuda_driver,) if os.environ.get(LIBCUDA) else (cupy_driver, libcuda_driver)
    )
    reasons = []
    for each in bindings:
        reason = each.missing()
        if not reason:
            return each
        reasons.append(reason)
    raise DriverMissing("; ".join(["no GPU can be used here", *reversed(reasons)]))


def open_driver(device: int) -> Driver:
    """Return the driver of the GPU with this number; raise `DriverMissing` if it can't be had."""
    return choose_bindings().open_device(device)


def explained(device: int, error: Exception) -> EngineError:
    """Return what an exception means that a call of CUDA raised; its ``status`` is CUDA's, if it has one."""
    if isinstance(error, EngineError):
        return error
    return failure(device, getattr(error, "status", None), str(error))


def failure(device: int, status: int | None, what: str) -> EngineError:
    """Return the error for a status of CUDA; None stands for an unknown status."""
    text = f"GPU {device}: {what}"
    if status in LOST:
        return DeviceLost(f"{text}; the worker has to be restarted")
    return EngineError(text)


__all__ = [
    "BINDINGS",
    "LIBCUDA",
    "LOST",
    "SHARED_WITHOUT_ASKING",
    "Bindings",
    "Copy",
    "DeviceLost",
    "Driver",
    "DriverMissing",
    "EngineError",
    "Extent",
    "MemoryState",
    "choose_bindings",
    "explained",
    "failure",
    "open_driver",
]
