"""The emulated device: memory, launches, and what comes of them.

The memory is one file: weights and inputs, which no kernel may write, before workspace and outputs, which
begin as NaNs. Between any two tensors there is room that belongs to nobody.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulator.build import EmulationError, Program

Array = npt.NDArray[Any]
Extent = tuple[int, int, int]

POISON = 0xFF
"""Every byte of what nobody wrote: a NaN in every floating-point type."""
_GAP_BYTES = 4096
_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_BLOCK = (1024, 1024, 64)
_MOST_THREADS = 1024
_MOST_DYNAMIC_BYTES = 227 * 1024


@dataclass(frozen=True)
class Pointer:
    """An argument that is an address: where it points to, and how many bytes belong to it."""

    region: str
    offset: int
    size_bytes: int
    writes: bool = False


@dataclass(frozen=True)
class Number:
    """An argument that is a number, in the kernel's own type."""

    value: int | float
    dtype: str = "int32"

    def words(self) -> list[int]:
        """Return its bytes as a number."""
        return [int.from_bytes(np.array(self.value, self.dtype).tobytes(), "little")]


@dataclass(frozen=True)
class Words:
    """An argument that is a structure of words of 8 bytes, passed by value."""

    values: tuple[int, ...]

    def words(self) -> list[int]:
        """Return the words."""
        return [*self.values]


@dataclass(frozen=True)
class KernelLaunch:
    """One launch, with the arguments in the order of the kernel's parameters."""

    kernel: str
    grid: Extent
    block: Extent
    arguments: tuple[Pointer | Number | Words, ...]
    shared_bytes: int = 0


@dataclass
class _Region:
    name: str
    begin: int
    size_bytes: int
    written: bool


class Device:
    """Memory of named regions, and a program to launch kernels of."""

    def __init__(self, program: Program, workers: int = 2, limit_s: float = 900.0) -> None:
        """``workers`` processes share out the blocks; longer than ``limit_s`` no run may take."""
        self._program = program
        self._workers = workers
        self._limit_s = limit_s
        self._given: dict[str, Array] = {}
        self._made: dict[str, int] = {}

    def give(self, region: str, content: Array) -> None:
        """Add a region that holds values, and that no kernel may write."""
        self._given[region] = np.ascontiguousarray(content)

    def make(self, region: str, size_bytes: int) -> None:
        """Add a region that nobody wrote yet."""
        self._made[region] = size_bytes

    def run(self, launches: Sequence[KernelLaunch]) -> dict[str, npt.NDArray[np.uint8]]:
        """Run the launches one after the other; return the bytes of the regions that were made.

        Raises `EmulationError` for the first launch that no device could do, and for the first that does
        what no kernel may: read what nobody wrote, touch what is not its own, or race.
        """
        regions, size_bytes = self._lay_out()
        lines = [f"workers {self._workers}", f"arena {size_bytes}"]
        lines += [f"region {r.name} {r.begin} {r.size_bytes} {int(r.written)}" for r in regions.values()]
        for position, launch in enumerate(launches):
            self._check(position, launch, regions)
            lines.append(_line(launch, regions))
        with tempfile.TemporaryDirectory(prefix="emulator-") as folder:
            program, arena = Path(folder) / "program", Path(folder) / "arena"
            program.write_text("\n".join(lines) + "\n")
            memory = np.memmap(arena, np.uint8, "w+", shape=(size_bytes,))
            memory[:] = POISON
            for name, content in self._given.items():
                begin = regions[name].begin
                memory[begin : begin + content.nbytes] = content.reshape(-1).view(np.uint8)
            memory.flush()
            self._execute(program, arena)
            return {
                name: np.array(memory[regions[name].begin :][: regions[name].size_bytes])
                for name in self._made
            }

    def _lay_out(self) -> tuple[dict[str, _Region], int]:
        """Place the regions, those with values first; return them and the length of all."""
        sizes = [(name, content.nbytes, True) for name, content in self._given.items()]
        sizes += [(name, size, False) for name, size in self._made.items()]
        regions, end = {}, _GAP_BYTES
        for name, size, written in sizes:
            regions[name] = _Region(name, end, size, written)
            end += -(-size // _GAP_BYTES) * _GAP_BYTES + _GAP_BYTES
        return regions, end

    def _check(self, position: int, launch: KernelLaunch, regions: dict[str, _Region]) -> None:
        """Refuse what a device's driver would refuse, or what would be wrong before it began."""
        where = f"launch {position} ({launch.kernel})"
        kernel = self._program.kernels.get(launch.kernel)
        if kernel is None:
            raise EmulationError(f"{where}: the source has no such kernel")
        threads = math.prod(launch.block)
        inside = all(1 <= n <= most for n, most in zip(launch.grid, _MOST_GRID, strict=True))
        inside &= all(1 <= n <= most for n, most in zip(launch.block, _MOST_BLOCK, strict=True))
        if not inside or threads > (kernel.most_threads or _MOST_THREADS):
            raise EmulationError(
                f"{where}: a grid of {launch.grid} blocks of {launch.block} threads can't be; the kernel is "
                f"bound to {kernel.most_threads or _MOST_THREADS} threads"
            )
        if not 0 <= launch.shared_bytes <= _MOST_DYNAMIC_BYTES:
            raise EmulationError(f"{where}: {launch.shared_bytes} bytes of dynamic shared memory can't be")
        if len(launch.arguments) != kernel.parameters:
            raise EmulationError(
                f"{where}: {len(launch.arguments)} arguments for {kernel.parameters} parameters"
            )
        pointers = [each for each in launch.arguments if isinstance(each, Pointer)]
        for pointer in pointers:
            region = regions.get(pointer.region)
            if region is None or not 0 <= pointer.offset <= region.size_bytes - pointer.size_bytes:
                raise EmulationError(f"{where}: {pointer} is not inside a region")
            if pointer.writes and region.written:
                raise EmulationError(f"{where}: {pointer} is written, and nothing may write {region.name}")
        for pointer in (each for each in pointers if each.writes):
            if any(_overlap(pointer, other) for other in pointers if other is not pointer):
                raise EmulationError(f"{where}: what it writes, {pointer}, overlaps another argument")

    def _execute(self, program: Path, arena: Path) -> None:
        command = [str(self._program.path), str(program), str(arena)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            raise EmulationError(f"the kernels did not end within {self._limit_s:g} s") from None
        if done.returncode:
            raise EmulationError(self._with_lines(done.stderr.strip() or f"status {done.returncode}"))

    def _with_lines(self, text: str) -> str:
        """Replace the address in the program by the line of the source."""
        found = re.search(r" \[at (0x[0-9a-f]+)\]", text)
        if found is None:
            return text
        command = ["addr2line", "-e", str(self._program.path), hex(int(found[1], 16) - 1)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        line = re.search(r"kernels\.cu:(\d+)", said)
        return text[: found.start()] + (f" [kernels.cu line {line[1]}]" if line else "")


def _overlap(one: Pointer, other: Pointer) -> bool:
    begin, end = (
        max(one.offset, other.offset),
        min(one.offset + one.size_bytes, other.offset + other.size_bytes),
    )
    return one.region == other.region and begin < end


def _line(launch: KernelLaunch, regions: dict[str, _Region]) -> str:
    """Return the launch as the runtime reads it."""
    words: list[object] = ["launch", launch.kernel, *launch.grid, *launch.block]
    words += [launch.shared_bytes, len(launch.arguments)]
    for argument in launch.arguments:
        if isinstance(argument, Number | Words):
            bits = argument.words()
            words += ["number", len(bits), *(f"{word:x}" for word in bits)]
        else:
            begin = regions[argument.region].begin + argument.offset
            words += ["pointer", begin, argument.size_bytes, int(argument.writes)]
    return " ".join(map(str, words))
