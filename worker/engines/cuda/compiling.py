"""CUDA C++ to machine code, for models that were compiled without ``nvcc``.

NVRTC needs no GPU and no toolkit, only its own library and CUDA's headers, which come with the extra
``cuda``. No option trades digits for speed: outputs have to be those that the compiler verified.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from mainspring import extras
from mainspring.worker.engine import EngineError

HEADERS = ("cudart", "cccl")
"""Headers that generated kernels include: CUDA's own and its C++ standard library."""

_MOST_WORDS = 1000
"""Most characters of the compiler's log that an error quotes."""


def compile_with_nvrtc(source: str, arch: str) -> bytes:
    """Return machine code for ``arch``, such as ``sm_90``; raise `EngineError` with the compiler's words."""
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"--disable-warnings"]
        options += [f"--include-path={folder}".encode() for folder in header_folders()]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            raise EngineError(f"NVRTC can't compile the kernels for {arch}: {_log(nvrtc, program)}")
        code = b"\0" * int(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def header_folders() -> tuple[Path, ...]:
    """Return the folders of CUDA's installed headers."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return ()
    found = [find_nvidia_header_directory(name) for name in HEADERS]
    return tuple(Path(folder) for folder in found if folder)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise EngineError(
            f"the kernels are there as source alone and NVRTC is not ({str(error).strip()}); "
            f"{extras.command('gpu')}, or compile the model where nvcc is on the PATH"
        ) from error
    return nvrtc


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """Return a call's value without its status; raise `EngineError` unless the status is success."""
    status, *values = answer
    if int(status):
        _, text = nvrtc.nvrtcGetErrorString(status)
        raise EngineError(f"NVRTC failed: {text.decode() if isinstance(text, bytes) else text}")
    return values[0] if values else None


def _log(nvrtc: Any, program: Any) -> str:
    log = b" " * int(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return log.decode(errors="replace").strip("\0 \n")[:_MOST_WORDS]
