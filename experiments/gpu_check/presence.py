"""Whether there is a GPU to check, and what is missing if not: asked of CUDA's own driver, without CuPy."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable

from mainspring import extras

LIBRARY = "libcuda.so.1"
LEAST_CUDA = 13_000
"""As CUDA numbers its versions: 13.0, of drivers from 580 on."""
PACKAGES = {"cupy": "gpu", "cuda.bindings": "gpu"}
"""Modules that the CUDA worker needs, each with the extra that brings it."""


def missing(device: str, library: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> list[str]:
    """Return why the device can't be checked here, each reason with what would help; nothing if it can."""
    number = int(device.partition(":")[2])
    reasons = [_no_gpu(number, library)]
    reasons += [
        f"the Python package {name} is missing: {extras.command(extra)}"
        for name, extra in PACKAGES.items()
        if not _installed(name)
    ]
    return [reason for reason in reasons if reason]


def _no_gpu(number: int, library: Callable[[str], ctypes.CDLL]) -> str:
    """Say why there is no such GPU; nothing if there is."""
    try:
        cuda = library(LIBRARY)
    except OSError:
        return (
            f"there is no {LIBRARY}, NVIDIA's driver: install the driver (580 or newer for CUDA 13), or in a "
            "container use --gpus all"
        )
    status = cuda.cuInit(0)
    if status:
        return f"CUDA's driver can't start (cuInit gave error {status}): nvidia-smi says more, if it is there"
    version = ctypes.c_int(0)
    if not cuda.cuDriverGetVersion(ctypes.byref(version)) and version.value < LEAST_CUDA:
        newest = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return (
            f"NVIDIA's driver is for CUDA {newest} and no newer one: install driver 580 or newer, for CUDA 13"
        )
    count = ctypes.c_int(0)
    status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status or count.value <= number:
        return f"there is no GPU {number}: CUDA's driver counts {count.value}, beginning with 0"
    return ""


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
