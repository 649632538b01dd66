"""The compilers that TVM's code goes through, and what is said where one is missing or complains."""

from __future__ import annotations

import shutil

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.tvm.build import cubin, shared_object

KERNEL = b'extern "C" __global__ void twice(float* a) { a[threadIdx.x] *= 2.0f; }\n'


def test_without_a_linker_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CompileError, match=r"none of cc, gcc, clang, .* install a C compiler"):
        shared_object(b"\x7fELF")


def test_code_that_needs_tvm_at_run_time_is_refused() -> None:
    with pytest.raises(CompileError, match="calls TVMBackendAllocWorkspace, which a worker does not have"):
        shared_object(b"\x7fELF...TVMBackendAllocWorkspace\0")


def test_what_the_linker_says_is_in_the_error() -> None:
    with pytest.raises(CompileError, match=r"the kernels can't be linked: .*kernels\.o"):
        shared_object(b"no object file")


def test_without_nvcc_there_is_no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert cubin(KERNEL, "sm_90") is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_makes_machine_code_or_says_why_not() -> None:
    made = cubin(KERNEL, "sm_90")
    assert made is not None
    assert made.startswith(b"\x7fELF")
    with pytest.raises(CompileError, match=r"nvcc can't compile the kernels: .*undefined"):
        cubin(KERNEL.replace(b"threadIdx", b"nowhere"), "sm_90")
