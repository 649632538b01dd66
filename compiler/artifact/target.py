"""Dependencies of an executable for the CPU: the instruction set and the version of ONNX Runtime.

ONNX Runtime blocks convolution weights by the width of the vector registers (NCHWc: 16 channels with
AVX-512, 8 with AVX and AVX2), so weights laid out for one instruction set are wrong for another. Kernels of
TVM are machine code: they run on machines with the instructions that they were generated for.
"""

from __future__ import annotations

import platform
from pathlib import Path

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import CPU, CUDA, ONNXRUNTIME, TVM, ExecutableInfo

_VECTOR_FLAGS = ("sse4_1", "avx", "fma", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni")
_LEVELS = ("baseline", "avx", "avx2", "avx512f")
"""The results of `instruction_set`; each has the instructions of those before it."""


def cpu_flags() -> tuple[str, ...]:
    """Return this machine's vector extensions as Linux names them; empty where it names none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return tuple(flag for flag in _VECTOR_FLAGS if flag in flags)


def instruction_set() -> str:
    """Return the part of the instruction set that decides ONNX Runtime's layout, such as ``x86_64-avx2``."""
    flags = cpu_flags()
    if "avx512f" in flags:
        return f"{platform.machine()}-avx512f"
    if "avx2" in flags and "fma" in flags:
        return f"{platform.machine()}-avx2"
    return f"{platform.machine()}-{'avx' if 'avx' in flags else 'baseline'}"


def kernels_instruction_set() -> str:
    """Return the instruction set that kernels for this machine are generated for: at most AVX2.

    Sixteen lanes are not used: many processors run them at a lower clock.
    """
    machine, level = _parts(instruction_set())
    return f"{machine}-{'avx2' if _LEVELS.index(level) >= _LEVELS.index('avx2') else 'baseline'}"


def target_of(engine: str, device: str, level: str, arch: str) -> str:
    """Return what an executable is for (`messages.targets`).

    ``level`` is its ``ExecutableInfo.instruction_set``, ``arch`` the architecture of kernels for a GPU.
    """
    if device == CPU:
        return f"{engine}-{level}"
    return f"{engine}-{arch if engine == TVM else device}"


def cpu_targets(engine: str, level: str = "") -> tuple[str, ...]:
    """Return the targets that an engine runs on this CPU, its own instruction set's first.

    ``level`` is an instruction set that this machine has, to go by in the place of the machine's: ONNX
    Runtime lays weights out for the machine's, whatever it is told, and so runs none then. Raises
    `ValueError`, which names what is right, for a level that this machine lacks, or that leaves nothing.
    """
    machine, best = _parts(instruction_set())
    if level and (_parts(level)[0] != machine or level.rpartition("-")[2] not in _LEVELS[: _rank(best) + 1]):
        known = ", ".join(f"{machine}-{each}" for each in _LEVELS[: _rank(best) + 1])
        raise ValueError(f"instruction_set {level!r} is not one that this machine has: {known}")
    whole = not level or _parts(level)[1] == best
    found = [f"{ONNXRUNTIME}-{machine}-{best}"] if whole and engine != TVM else []
    if engine != ONNXRUNTIME:
        highest = _rank(_parts(level or f"{machine}-{best}")[1])
        found += [f"{TVM}-{machine}-{each}" for each in reversed(_LEVELS[: highest + 1])]
    if not found:
        raise ValueError(
            f"instruction_set is {level}, and ONNX Runtime lays weights out for {machine}-{best}, which this "
            f"machine has: give the worker the engine {TVM} or auto, or no instruction_set"
        )
    return tuple(found)


def gpu_targets(engine: str, arch: str) -> tuple[str, ...]:
    """Return the targets that an engine runs on a GPU of an architecture, the best first.

    Kernels of TVM for another architecture run too: as PTX, or compiled from their source.
    """
    found = [f"{TVM}-{arch}a", f"{TVM}-{arch}", f"{TVM}-sm_*"] if engine != ONNXRUNTIME else []
    return (*found, *([f"{ONNXRUNTIME}-{CUDA}"] if engine != TVM else []))


def _rank(level: str) -> int:
    return _LEVELS.index(level)


def check_target(info: ExecutableInfo, remedy: str) -> None:
    """Raise `StoreError` with ``remedy`` unless this machine and library can run the executable.

    An executable for a GPU does not depend on the compiling machine; the engine that opens it checks the
    rest.
    """
    if info.device != CPU:
        return
    if info.engine == TVM:
        _check_kernels(info, remedy)
        return
    # Imported here, so that executables for a GPU are checked without it.
    import onnxruntime

    found = (instruction_set(), onnxruntime.__version__)
    if (info.instruction_set, info.onnxruntime) != found:
        raise StoreError(
            f"executable {info.executable[:12]} was compiled for {info.instruction_set} and ONNX Runtime "
            f"{info.onnxruntime}, but this is {found[0]} with ONNX Runtime {found[1]}; {remedy}"
        )


def _check_kernels(info: ExecutableInfo, remedy: str) -> None:
    here = instruction_set()
    (machine, level), (our_machine, our_level) = _parts(info.instruction_set), _parts(here)
    if machine != our_machine or _LEVELS.index(level) > _LEVELS.index(our_level):
        raise StoreError(
            f"executable {info.executable[:12]} holds kernels for {info.instruction_set}, but this is "
            f"{here}; {remedy}"
        )


def _parts(name: str) -> tuple[str, str]:
    """Return the machine and the level of an instruction set; an unknown one has the highest level."""
    machine, _, level = name.rpartition("-")
    return machine, level if level in _LEVELS else _LEVELS[-1]
