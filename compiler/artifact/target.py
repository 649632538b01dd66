"""Dependencies of an executable: instruction set, version of ONNX Runtime, or facts about a GPU.

ONNX Runtime blocks convolution weights by the width of the vector registers (NCHWc: 16 channels with AVX-512,
8 with AVX and AVX2), so weights laid out for one instruction set are wrong for another. Kernels of TVM are
machine code: they run on machines with the instructions that they were generated for.

A GPU's facts are read from the device where there is one, else from a table. Its figures are those of
NVIDIA's data sheets for one server's GPU of each architecture, and of the table "Technical specifications per
compute capability" in the CUDA C++ programming guide. Clocks are the highest that the GPU runs at.
"""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import CPU, CUDA, FOR_ANY, ONNXRUNTIME, PYTHON, TVM, ExecutableInfo

_VECTOR_FLAGS = ("sse4_1", "avx", "fma", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni")

_LEVELS = ("baseline", "avx", "avx2", "avx512f")
"""The results of `instruction_set`; each has the instructions of those before it."""

ANY_PYTHON = f"{PYTHON}-{FOR_ANY}"
"""The target of Python models, which every worker on a CPU runs."""


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
    if engine == PYTHON:
        return (ANY_PYTHON,)
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
    return (*found, ANY_PYTHON)


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
    if info.device != CPU or info.engine == PYTHON:
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


_LOGGER = logging.getLogger(__name__)


class Gpu(msgspec.Struct, frozen=True):
    """A GPU, as far as it matters how kernels are divided among its parts."""

    arch: str
    """Architecture that kernels are compiled for, such as ``sm_90``."""
    processors: int
    """Multiprocessors, which a partition of a GPU has fewer of."""
    clock_mhz: int
    """Clock of the multiprocessors."""
    memory_gb_s: int
    """Bandwidth of the device's memory."""
    shared_bytes: int
    """Shared memory that a block may ask for: what a multiprocessor has for all of its blocks."""
    registers: int
    """Registers of a multiprocessor, of 32 bits each."""
    products: int
    """Multiplications in FP32 that a multiprocessor does in a cycle."""
    tensor_products: int
    """Multiplications in TF32 that its tensor cores do in a cycle by ``mma.sync``; twice as many in FP16.

    0 for those that have no TF32.
    """

    def cycles(self, seconds: float) -> float:
        """Return how many cycles the multiprocessors have in a time."""
        return seconds * self.clock_mhz * 1e6


class Attributes(msgspec.Struct, frozen=True):
    """The facts about a GPU that a driver reports; 0 for what it does not."""

    processors: int = 0
    clock_khz: int = 0
    memory_clock_khz: int = 0
    memory_bus_bits: int = 0
    shared_bytes: int = 0
    registers: int = 0


ATTRIBUTES = {
    "processors": 16,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "shared_bytes": 97,
    "registers": 82,
}
"""CUDA's numbers of the `Attributes`; the runtime and the driver API number them alike."""

_KIB = 1024

KNOWN = {
    gpu.arch: gpu
    for gpu in (
        # V100, T4, A100 of 80 GB, A10, L4, H100 and B200 for servers; RTX 5090, which has sm_120 alone.
        Gpu("sm_70", 80, 1530, 900, 96 * _KIB, 65536, 64, 0),
        Gpu("sm_75", 40, 1590, 320, 64 * _KIB, 65536, 64, 0),
        Gpu("sm_80", 108, 1410, 2039, 163 * _KIB, 65536, 64, 512),
        Gpu("sm_86", 72, 1695, 600, 99 * _KIB, 65536, 128, 256),
        Gpu("sm_89", 58, 2040, 300, 99 * _KIB, 65536, 128, 256),
        Gpu("sm_90", 132, 1980, 3352, 227 * _KIB, 65536, 128, 512),
        Gpu("sm_100", 148, 1965, 8000, 227 * _KIB, 65536, 128, 512),
        Gpu("sm_120", 170, 2407, 1792, 99 * _KIB, 65536, 128, 128),
    )
}
"""GPUs by architecture, with an A100's tensor cores for those that are faster by other instructions alone."""

ASSUMED = "sm_90"


def known_gpu(arch: str) -> Gpu:
    """Return the usual GPU of an architecture such as ``sm_90``.

    Of an unknown architecture that of an H100 is assumed, which the log says.
    """
    known = KNOWN.get(arch.rstrip("af"))
    if known is None:
        known = KNOWN[ASSUMED]
        _LOGGER.warning("what a GPU of %s has is not known; %s is assumed", arch, known)
    return msgspec.structs.replace(known, arch=arch)


def found_gpu(arch: str, told: Attributes) -> Gpu:
    """Return a GPU as its driver describes it; what the driver does not say is as usual."""
    usual = known_gpu(arch)
    # Memory moves two bits a line in each cycle of its clock.
    bandwidth = round(2 * told.memory_clock_khz * told.memory_bus_bits / 8 / 1e6)
    return msgspec.structs.replace(
        usual,
        processors=told.processors or usual.processors,
        clock_mhz=told.clock_khz // 1000 or usual.clock_mhz,
        memory_gb_s=bandwidth or usual.memory_gb_s,
        shared_bytes=told.shared_bytes or usual.shared_bytes,
        registers=told.registers or usual.registers,
    )
