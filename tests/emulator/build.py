"""From generated CUDA source to a program for this machine that runs its kernels.

Each kernel is compiled by itself, instrumented, with `device.h` before it; so its shared memory is a section
of its own, and the cores share the work. The runtime (``runtime.cpp``, ``fibers.cpp``, ``copies.cpp``,
``checks.cpp``) is compiled without instrumentation and linked to them.
"""

from __future__ import annotations

import atexit
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RUNTIME = {"runtime.cpp": "-O1", "fibers.cpp": "-O2", "checks.cpp": "-O3", "copies.cpp": "-O2"}

_KERNEL = re.compile(
    r'^extern "C" __global__ void (?:__launch_bounds__\((?P<most>\d+)[^)]*\) )?(?P<name>\w+)\('
)
_DYNAMIC = re.compile(r"extern __shared__(?: alignas\(\d+\))? ([\w ]+?) (\w+)\[\];")
PLACE = "mainspring_place"
_SMALL = {r"\b(?:char|bool|int8_t|uint8_t|uchar)\b *\*": 1, r"\b(?:half|short|int16_t|uint16_t)\b *\*": 2}
SOURCE = "kernels.cu"
"""What the source's lines are said to be of."""
_PROCESSES = os.cpu_count() or 1
_COMMON = ("-std=c++17", "-march=native", "-fno-pie", "-fno-strict-aliasing", "-w")
_INSTRUMENTED = ("-O2", "-g1", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")


class EmulationError(Exception):
    """The kernels don't compile here, or did what no kernel may; the text says which, where and what."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of the source."""

    name: str
    prototype: str
    """The declaration up to its closing parenthesis."""
    text: str
    line: int
    """Of the source, in which ``text`` begins."""
    most_threads: int
    """Of a block; 0 if the source does not say."""

    @property
    def placed(self) -> bool:
        """Whether its arrays are places instead of pointers."""
        return PLACE in self.prototype

    @property
    def parameters(self) -> int:
        """How many arguments a launch has to have."""
        inside = self.prototype[self.prototype.index(f"{self.name}(") + len(self.name) + 1 : -1].strip()
        return inside.count(",") + 1 if inside not in ("", "void") else 0


@dataclass(frozen=True)
class Program:
    """A compiled source."""

    path: Path
    kernels: dict[str, Kernel]


@functools.cache
def why_not() -> str:
    """Say why nothing can be emulated on this machine; empty if it can."""
    if platform.machine() != "x86_64":
        return f"the emulator switches threads on x86_64 only, and this is {platform.machine()}"
    if shutil.which("g++") is None:
        return "the emulator compiles kernels with g++, which is not installed"
    return ""


def split_source(source: str) -> tuple[str, list[Kernel]]:
    """Return what stands before the first kernel, and the kernels' definitions.

    Raises `EmulationError` if there is none.
    """
    lines = source.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if _KERNEL.match(line)]
    definitions = [number for number in starts if not _declaration(lines[number])]
    if not definitions:
        raise EmulationError('the source has no kernel: no line begins with `extern "C" __global__ void`')
    kernels = []
    for begin, end in zip(definitions, [*definitions[1:], len(lines)], strict=True):
        found = _KERNEL.match(lines[begin])
        assert found is not None
        text = "".join(lines[begin:end])
        prototype = text[: text.index(")", found.end()) + 1]
        most = int(found["most"] or 0)
        kernels.append(Kernel(found["name"], prototype, text, begin + 1, most))
    return "".join(lines[: starts[0]]), kernels


def _declaration(line: str) -> bool:
    return line.rstrip().endswith(";")


def compile_source(source: str, folder: Path, names: Collection[str] | None = None) -> Program:
    """Compile ``source``, or of its kernels those of these ``names``, in ``folder``, which is made.

    Raises `EmulationError` if the compiler refuses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for header in ("cuda.h", "cuda_fp16.h", "cuda_runtime.h"):
        (folder / header).write_text("#pragma once\n")
    before, kernels = split_source(source)
    if names is not None:
        kernels = [kernel for kernel in kernels if kernel.name in names]
    granule = min((size for pattern, size in _SMALL.items() if re.search(pattern, source)), default=4)
    jobs: list[_Job] = []
    for index, group in enumerate(_groups(kernels)):
        unit = folder / f"kernels_{index}.cpp"
        unit.write_text(_unit(before, group))
        jobs.append(_Job(unit, _INSTRUMENTED))
    jobs.append(_Job(folder / "table.cpp", ("-O1",)))
    jobs[-1].path.write_text(_table(before, kernels))
    with ThreadPoolExecutor(_PROCESSES) as pool:
        runtime = pool.submit(_runtime, granule)
        objects = list(pool.map(lambda job: _compile(job, folder), jobs)) + runtime.result()
    program = folder / "emulator"
    # What stands before the kernels may define functions that are not inline, in each unit the same.
    _call(["g++", "-no-pie", "-Wl,-z,muldefs", "-o", str(program), *map(str, objects), "-lpthread"])
    return Program(program, {kernel.name: kernel for kernel in kernels})


def _groups(kernels: list[Kernel]) -> list[list[tuple[int, Kernel]]]:
    """Return the kernels, each with its number, in as many groups of like length as there are cores."""
    groups: list[list[tuple[int, Kernel]]] = [[] for _ in range(min(_PROCESSES, len(kernels)))]
    lengths = [0] * len(groups)
    for index, kernel in sorted(enumerate(kernels), key=lambda each: -len(each[1].text)):
        shortest = lengths.index(min(lengths))
        groups[shortest].append((index, kernel))
        lengths[shortest] += len(kernel.text)
    return groups


def _unit(before: str, group: list[tuple[int, Kernel]]) -> str:
    """Return the source of some kernels, the shared memory of each in a section of its own."""
    parts = [f'#include "device.h"\n#line 1 "{SOURCE}"\n{before}']
    for index, kernel in group:
        text = kernel.text.replace("#pragma unroll", "#pragma GCC unroll 64")
        text = _DYNAMIC.sub(r"\1* \2 = (\1*)emulator_dynamic_shared;", text)
        section = f'#undef EMULATOR_SECTION\n#define EMULATOR_SECTION "{_section(index)}"'
        parts.append(f'{section}\n#line {kernel.line} "{SOURCE}"\n{text}')
    return "\n".join(parts)


def _section(index: int) -> str:
    return f"emulator_shared_{index}"


def _table(before: str, kernels: list[Kernel]) -> str:
    """Return the source of the table of kernels, each with a function that unpacks its arguments."""
    rows, weak = [], []
    for index, kernel in enumerate(kernels):
        ends = [f"__{end}_{_section(index)}" for end in ("start", "stop")]
        weak += [f'extern "C" __attribute__((weak)) unsigned char {end}[];' for end in ends]
        rows.append(
            f'{{"{kernel.name}", Call<decltype(&{kernel.name})>::call<{kernel.name}>, {", ".join(ends)}, '
            f"{str(kernel.placed).lower()}}}"
        )
    prototypes = [f"{kernel.prototype};" for kernel in kernels]
    head = ['#include "device.h"', before, *prototypes, _UNPACK, *weak, '#include "runtime.h"']
    table = ",\n  ".join(rows)
    return "\n".join([*head, f"const Kernel kernels[] = {{\n  {table}}};"]) + (
        f"\nconst unsigned kernel_count = {len(kernels)};\n"
    )


_UNPACK = """#include <utility>
template <class F> struct Call;
template <class... A> struct Call<void (*)(A...)> {
  template <void (*kernel)(A...), size_t... I>
  static void spread(void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
  }
  template <void (*kernel)(A...)> static void call(void** arguments) {
    spread<kernel>(arguments, std::index_sequence_for<A...>());
  }
};"""


@functools.cache
def _runtime(granule_bytes: int) -> list[Path]:
    """Compile the runtime, once in a process for each size of the smallest element."""
    folder = Path(tempfile.mkdtemp(prefix="emulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    option = f"-DGRANULE_BYTES={granule_bytes}"
    return [_compile(_Job(HERE / name, (level, option)), folder) for name, level in RUNTIME.items()]


class _Job(NamedTuple):
    """A file to compile, and how."""

    path: Path
    options: tuple[str, ...]


def _compile(job: _Job, folder: Path) -> Path:
    target = folder / f"{job.path.stem}.o"
    include = (f"-I{folder}", f"-I{HERE}")
    _call(["g++", *_COMMON, *job.options, *include, "-c", str(job.path), "-o", str(target)])
    return target


def _call(command: list[str]) -> None:
    plain = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error: " in line), done.stderr[:500])
        raise EmulationError(f"the host compiler refuses the source: {first.strip()}")
