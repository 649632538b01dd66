"""The compiler's facts about a GPU: read from the device where there is one, else from a table.

The table's figures are those of NVIDIA's data sheets for one server's GPU of each architecture, and of the
table "Technical specifications per compute capability" in the CUDA C++ programming guide. Clocks are the
highest that the GPU runs at.
"""

from __future__ import annotations

import logging

import msgspec

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
