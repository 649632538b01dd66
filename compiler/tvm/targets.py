"""What TVM generates code for: this machine's CPU, or a GPU named by its architecture."""

from __future__ import annotations

import re
from typing import Any

import tvm

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.target import kernels_instruction_set

_LLVM_LEVELS = {"x86_64-avx2": "x86-64-v3", "x86_64-baseline": "x86-64"}
"""LLVM's names of instruction sets."""
_ARCH = re.compile(r"sm_[1-9][0-9]{1,2}a?")
_THREADS = 256
"""Threads of a block where one computes one element: few enough that small images make many blocks."""
_SHARED_BYTES = 48 * 1024
"""Static shared memory of a block on every architecture."""


def llvm_options() -> str:
    """Return the options that kernels for this machine are generated with; nothing is its plainest level."""
    level = _LLVM_LEVELS.get(kernels_instruction_set(), "")
    return f"-mcpu={level}" if level else ""


def cpu_target() -> Any:
    """Return the target for this machine's CPU."""
    level = _LLVM_LEVELS.get(kernels_instruction_set(), "")
    return tvm.target.Target({"kind": "llvm"} | ({"mcpu": level} if level else {}))


def cuda_target(arch: str) -> Any:
    """Return the target for a GPU; raise `CompileError` for what is no architecture."""
    if not _ARCH.fullmatch(arch):
        raise CompileError(
            f"{arch!r} is no architecture of a GPU: it is sm_90 for an H100, sm_80 for an A100"
        )
    description = {
        "kind": "cuda",
        "arch": arch,
        "max_threads_per_block": _THREADS,
        "max_shared_memory_per_block": _SHARED_BYTES,
        "thread_warp_size": 32,
    }
    return tvm.target.Target(description, host="llvm")
