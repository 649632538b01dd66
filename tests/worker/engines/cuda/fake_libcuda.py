"""`fake_libcuda.c` as a library that the driver can load, with the kernels of a test."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainspring.compiler.artifact.plan import (
    ADDRESSES,
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    ENTRY_SHIFT,
    SET_ADDRESSES,
)
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel
from tests.worker.engines.cuda import tiny_store

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("gcc") or shutil.which("cc")
KINDS = ("memory", "contexts", "streams", "events", "modules", "functions", "graphs", "executables")
"""What `FakeLibcuda.alive` counts, as the library numbers it."""
IMAGE = tiny_store.CODE
"""Machine code that the library takes."""

_FOLDER = tempfile.TemporaryDirectory(prefix="fake-libcuda-")
_WORDS = ctypes.POINTER(ctypes.c_uint64)
_RUN = ctypes.CFUNCTYPE(None, _WORDS, ctypes.POINTER(_WORDS))


@functools.cache
def library() -> str:
    """Return the path of the compiled library, made once for each process of tests."""
    assert COMPILER is not None
    path = Path(_FOLDER.name, "libcuda.so.1")
    command = [
        COMPILER,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(path),
        str(SOURCE),
        "-lpthread",
    ]
    subprocess.run(command, check=True, timeout=120)
    return str(path)


class FakeLibcuda:
    """The library as a test sees it; a new one is a machine that was just started."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(library())
        self._library.fake_calls.restype = ctypes.c_char_p
        self._library.fake_kernel.argtypes = (
            ctypes.c_char_p, _RUN, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int64
        )  # fmt: skip
        self._library.fake_symbol.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        self._library.fake_total.argtypes = (ctypes.c_size_t,)
        self._library.fake_reset()
        self._library.fake_total(1 << 30)
        self._kept: list[Callable[..., None]] = []
        self.add_symbol(ADDRESSES, 8 * ADDRESSES_COUNT)
        self._add(SET_ADDRESSES, _set_addresses, [1, ADDRESSES_AT_ONCE], 1_000)

    def add_kernel(self, name: str, kernel: Kernel) -> None:
        """Give every module a kernel; if its parameters are places, it gets the addresses there."""

        def run(values: Any, variables: Any) -> None:
            found = values[: kernel.parameters]
            if kernel.placed:
                beyond = (1 << ENTRY_SHIFT) - 1
                found = [variables[0][value >> ENTRY_SHIFT] + (value & beyond) for value in found]
            kernel.run(*found)

        self._add(name, run, [1] * kernel.parameters, kernel.duration_ns)

    def add_symbol(self, name: str, size: int) -> None:
        """Give every module a variable."""
        self._library.fake_symbol(name.encode(), size)

    def fail(self, call: str, status: int) -> None:
        """Have every later call of a function end with an error."""
        self._library.fake_fail(call.encode(), status)

    def total(self, size: int) -> None:
        """Set the bytes of the device's memory."""
        self._library.fake_total(size)

    def calls(self) -> list[str]:
        """Return the calls since the last asking, each with those of its arguments that are not addresses."""
        found = self._library.fake_calls().decode().splitlines()
        self._library.fake_forget_calls()
        return list(found)

    def alive(self) -> dict[str, int]:
        """Return what was made and is not destroyed; functions live as long as their module."""
        counts = {name: self._library.fake_alive(kind) for kind, name in enumerate(KINDS)}
        counts["contexts"] = self._library.fake_contexts()
        return {name: count for name, count in counts.items() if count and name != "functions"}

    def _add(self, name: str, run: Callable[[Any, Any], None], words: list[int], duration_ns: int) -> None:
        self._kept.append(_RUN(run))
        sizes = (ctypes.c_int * len(words))(*words)
        self._library.fake_kernel(name.encode(), self._kept[-1], sizes, len(words), duration_ns)


def _set_addresses(values: Any, _variables: Any) -> None:
    """Write addresses, which follow the place in the table where the first of them goes."""
    ctypes.memmove(values[0], ctypes.addressof(values.contents) + 8, 8 * ADDRESSES_AT_ONCE)
