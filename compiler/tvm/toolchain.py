"""The compilers that turn generated code into files of kernels: a linker for the CPU, ``nvcc`` for a GPU."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from mainspring.compiler.artifact.errors import CompileError

_LINKERS = ("cc", "gcc", "clang", "c++")
_RUNTIME = (b"TVMBackendAllocWorkspace", b"TVMBackendParallelLaunch", b"TVMBackendGetFuncFromEnv")
"""Functions of TVM's own runtime, which a worker does not have."""
_TIMEOUT_SECONDS = 900


def shared_object(object_file: bytes) -> bytes:
    """Return the shared library of an object file; raise `CompileError` without a linker.

    The same object file gives the same bytes.
    """
    needed = [name.decode() for name in _RUNTIME if name in object_file]
    if needed:
        raise CompileError(f"the generated code calls {', '.join(needed)}, which a worker does not have")
    linker = next(filter(None, map(shutil.which, _LINKERS)), None)
    if linker is None:
        raise CompileError(
            f"none of {', '.join(_LINKERS)} is installed, and kernels for the CPU have to be linked: install "
            "a C compiler, such as Debian's package gcc"
        )
    arguments = [linker, "-shared", "-Wl,--build-id=none", "-o", "kernels.so", "kernels.o", "-lm"]
    return _run(arguments, {"kernels.o": object_file}, "kernels.so", "the kernels can't be linked")


def cubin(source: bytes, arch: str) -> bytes | None:
    """Return the source compiled for ``arch``; None without ``nvcc``: then the worker compiles it."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    # No --use_fast_math: it replaces division, square root and exp by approximations, and flushes subnormals.
    arguments = [nvcc, "-cubin", f"-arch={arch}", "-O3", "-std=c++17", "-o", "kernels.cubin", "kernels.cu"]
    return _run(arguments, {"kernels.cu": source}, "kernels.cubin", "nvcc can't compile the kernels")


def _run(arguments: list[str], inputs: dict[str, bytes], output: str, failure: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        for name, content in inputs.items():
            (Path(folder) / name).write_bytes(content)
        try:
            done = subprocess.run(
                arguments, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{failure}: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise CompileError(f"{failure}: {said[0] if said else f'exit status {done.returncode}'}")
        return (Path(folder) / output).read_bytes()
