"""Calls that a real GPU's driver refuses, as far as this project could come to ask for it.

The fake driver asks here before it does anything. Whatever a program does wrong by the rules of CUDA is a
failed assertion; what it may have to live with is the RuntimeError that CuPy would raise.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import NamedTuple

from mainspring.worker.engines.cuda.driver import Extent


class Kernel(NamedTuple):
    """A kernel's computation, given the values of its parameters, and its duration."""

    run: Callable[..., None]
    duration_ns: int = 10_000
    parameters: int = 1
    placed: bool = False


def move(target: int, source: int | bytes, size: int) -> None:
    """Copy bytes now."""
    ctypes.memmove(target, source, size)


def clear(address: int, size: int) -> None:
    """Write zeros now."""
    ctypes.memset(address, 0, size)


class Work:
    """One thing that a stream was told."""

    def __init__(
        self,
        number: int,
        what: str,
        stream: int,
        engine: str | None = None,
        duration_ns: int = 0,
        run: Callable[[], None] = lambda: None,
        after: Work | None = None,
    ) -> None:
        self.number = number
        self.what = what
        self.stream = stream
        self.engine = engine
        self.duration_ns = duration_ns
        self.run = run
        self.after = after
        self.told_ns = 0
        self.begin_ns = -1
        self.end_ns = -1
        self.size = 0


SHARED_WITHOUT_ASKING = 48 << 10
MOST_SHARED = 227 << 10
MOST_THREADS = 1024
MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)
MOST_BLOCK_Z = 64
UNSAFE = frozenset(
    {"allocate", "free", "allocate_host", "free_host", "register_host", "unregister_host"}
    | {"load_module", "unload_module", "synchronize"}
)
"""Calls that a thread may not make while it captures, since they wait for a device or may."""


class Rules:
    """State that a driver keeps to know what is allowed."""

    def __init__(self) -> None:
        self._attached: set[int] = set()
        self._timed: set[int] = set()
        self._capturing: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._launched: dict[int, Work] = {}

    def attach(self, error: Exception | None) -> None:
        """A thread wants to be one of the device's, which raises this error if it was lost."""
        if error is not None:
            raise error
        self._attached.add(threading.get_ident())

    def call(self, name: str) -> None:
        """A thread calls the driver."""
        thread = threading.get_ident()
        assert thread in self._attached, f"{name} in a thread that is not attached"
        if name in UNSAFE and thread in self._capturing.values():
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")

    def made_event(self, event: int, timed: bool) -> None:
        """There is a new event."""
        if timed:
            self._timed.add(event)

    def measure(self, begin: int, end: int) -> None:
        """The time between two events is asked for."""
        assert {begin, end} <= self._timed, "an event without a time"

    def capture(self, stream: int) -> None:
        """A capture begins."""
        assert stream not in self._capturing, "the stream is being captured already"
        self._capturing[stream] = threading.get_ident()

    def end_capture(self, stream: int) -> None:
        """A capture ends."""
        assert self._capturing.pop(stream) == threading.get_ident(), "another thread began this capture"

    def register(self, pinned: dict[int, int], address: int, size: int) -> None:
        """Memory is to be pinned beside what is pinned."""
        for begin, length in pinned.items():
            if address < begin + length and begin < address + size:
                raise RuntimeError("part or all of the requested memory range is already mapped")

    def allow_shared(self, function: int, size: int) -> None:
        """A kernel is to have so much dynamic shared memory."""
        if size > MOST_SHARED:
            raise RuntimeError("invalid argument")
        self._shared[function] = size

    def launch(self, function: int, grid: Extent, block: Extent, shared_bytes: int) -> None:
        """A kernel is launched, or captured."""
        fits = all(1 <= size <= most for size, most in zip(grid, MOST_BLOCKS, strict=True))
        threads = block[0] * block[1] * block[2]
        if not fits or not 1 <= threads <= MOST_THREADS or block[2] > MOST_BLOCK_Z:
            raise RuntimeError(f"invalid configuration: grid {grid}, block {block}")
        if shared_bytes > max(SHARED_WITHOUT_ASKING, self._shared[function]):
            raise RuntimeError(f"invalid argument: {shared_bytes} bytes of shared memory were not allowed")

    def launched(self, executable: int, last: Work | None) -> None:
        """A graph was launched, whose last piece of work this is."""
        if last is not None:
            self._launched[executable] = last

    def at_rest(self, executable: int) -> None:
        """A graph is to be destroyed."""
        last = self._launched.get(executable)
        assert last is None or last.end_ns >= 0, "a graph that has not ended"
