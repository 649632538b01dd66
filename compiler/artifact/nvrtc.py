"""CUDA C++ to machine code or PTX by NVRTC, NVIDIA's compiler as a library, without a GPU or ``nvcc``.

Called through ctypes. The library and CUDA's headers come as packages of PyPI (``nvidia-cuda-nvrtc``,
``nvidia-cuda-runtime``, ``nvidia-cuda-cccl``) or with a CUDA toolkit. No option trades digits for speed:
outputs have to be those that the compiler verified.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MOST_WORDS = 1000
"""Most characters of NVRTC's log that an error quotes."""
_HEADER = "cuda_fp16.h"
_STANDARD_LIBRARY = "cuda/std/cstdint"
REGISTERS = "--maxrregcount=255"
"""Option that allows as many registers as a thread can have: by default the assembler spills a few for one
more block at a time."""
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_LOCAL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class NvrtcMissing(Exception):
    """There is no NVRTC here, or CUDA's headers are missing."""


class NvrtcFailed(Exception):
    """NVRTC can't compile a source; the text quotes it."""


class Resources(NamedTuple):
    """The resources of a multiprocessor that one kernel uses, as the assembler reports them."""

    registers: int
    """Registers of each thread."""
    shared_bytes: int
    """Static shared memory of each block."""
    stack_bytes: int
    """Local memory of each thread, which is in the device's memory."""
    spilled_bytes: int
    """Bytes that each thread stores to and loads from local memory for want of registers."""


def compile_cuda(source: bytes, arch: str) -> bytes:
    """Return machine code for an architecture such as ``sm_90``, or PTX for one such as ``compute_80``.

    Raises `NvrtcMissing` and `NvrtcFailed`.
    """
    return _compiled(source, arch)[0]


def kernel_resources(source: bytes, arch: str) -> dict[str, Resources]:
    """Return what each kernel of a source takes on an architecture such as ``sm_90``, by its name.

    Raises `NvrtcMissing` and `NvrtcFailed`.
    """
    log = _compiled(source, arch, "--ptxas-options=--verbose")[1]
    _, *parts = _ENTRY.split(log)
    return {name: _resources(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _resources(text: str) -> Resources:
    """Return what a kernel's part of the assembler's report says; raise `NvrtcFailed` if too little."""
    used, local = _USED.search(text), _LOCAL.search(text)
    if used is None or local is None:
        raise NvrtcFailed(f"the assembler's report lacks registers or spills: {text[:_MOST_WORDS]!r}")
    stack, stored, loaded = map(int, local.groups())
    shared = _SHARED.search(text)
    return Resources(int(used[1]), int(shared[1]) if shared is not None else 0, stack, stored + loaded)


def _compiled(source: bytes, arch: str, *more: str) -> tuple[bytes, str]:
    """Return the code and the compiler's log."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--disable-warnings", REGISTERS, *more]
        options += [f"--include-path={folder}" for folder in header_folders()]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if nvrtc.nvrtcCompileProgram(program, len(options), array):
            raise NvrtcFailed(
                f"NVRTC can't compile the kernels for {arch}: {_log(nvrtc, program)[:_MOST_WORDS]}"
            )
        kind = "PTX" if arch.startswith("compute_") else "CUBIN"
        return _content(nvrtc, program, kind), _log(nvrtc, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def header_folders() -> tuple[Path, ...]:
    """Return the folders of CUDA's headers and of its C++ standard library; raise `NvrtcMissing`."""
    found: list[Path] = []
    for header in (_HEADER, _STANDARD_LIBRARY):
        folders = (each for each in _include_folders() if (each / header).is_file())
        folder = next(folders, None)
        if folder is None:
            raise NvrtcMissing(f"CUDA's header {header} is not installed")
        found.append(folder)
    return tuple(dict.fromkeys(found))


def _roots() -> Iterator[Path]:
    """Yield folders that may hold CUDA's ``lib`` and ``include``: packages of PyPI first, then toolkits."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        yield from sorted(each for each in Path(folder).iterdir() if each.is_dir())
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parent.parent
    yield Path("/usr/local/cuda")
    yield from sorted(Path("/usr/local").glob("cuda-*"), reverse=True)


def _include_folders() -> Iterator[Path]:
    for root in _roots():
        # Since CUDA 13 the C++ standard library is in a folder of its own.
        yield from (root / "include", root / "include" / "cccl")


def _libraries() -> Iterator[str]:
    for root in _roots():
        for folder in ("lib", "lib64"):
            found = sorted((root / folder).glob("libnvrtc.so*"), key=lambda path: (len(path.name), path.name))
            yield from map(str, found)
    known = ctypes.util.find_library("nvrtc")
    if known is not None:
        yield known


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """Return the library; raise `NvrtcMissing`."""
    reasons = []
    for path in _libraries():
        try:
            return _declared(ctypes.CDLL(path))
        except (OSError, AttributeError) as error:
            reasons.append(f"{path}: {error}")
    raise NvrtcMissing(f"NVRTC is not installed ({reasons[0]})" if reasons else "NVRTC is not installed")


def _declared(nvrtc: ctypes.CDLL) -> ctypes.CDLL:
    """Return the library with the functions' types."""
    text, number, place = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
    program, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
    texts = ctypes.POINTER(ctypes.c_char_p)
    nvrtc.nvrtcCreateProgram.argtypes = [place, text, text, number, texts, texts]
    nvrtc.nvrtcCompileProgram.argtypes = [program, number, texts]
    nvrtc.nvrtcDestroyProgram.argtypes = [place]
    nvrtc.nvrtcGetErrorString.argtypes = [number]
    nvrtc.nvrtcGetErrorString.restype = text
    for what in ("PTX", "CUBIN", "ProgramLog"):
        getattr(nvrtc, f"nvrtcGet{what}Size").argtypes = [program, size]
        getattr(nvrtc, f"nvrtcGet{what}").argtypes = [program, text]
    return nvrtc


def _content(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, content))
    return content.raw


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    return _content(nvrtc, program, "ProgramLog").decode(errors="replace").strip("\0 \n")


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status:
        raise NvrtcFailed(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status).decode(errors='replace')}")
