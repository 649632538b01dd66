"""The compilers that TVM's code goes through, and what is said where one is missing or complains."""

from __future__ import annotations

import shutil

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.nvrtc import NvrtcFailed, NvrtcMissing
from mainspring.compiler.tvm import build
from mainspring.compiler.tvm.build import compiled_kernels, shared_object

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


def test_without_nvcc_nvrtc_compiles_and_without_both_the_worker_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[bytes, str]] = []

    def nvrtc(source: bytes, arch: str) -> bytes:
        asked.append((source, arch))
        if arch == "sm_1":
            raise NvrtcFailed("NVRTC can't compile the kernels for sm_1: no")
        if arch == "sm_2":
            raise NvrtcMissing("NVRTC is not installed")
        return b"code"

    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(build, "compile_cuda", nvrtc)
    assert compiled_kernels(KERNEL, "sm_90") == b"code"
    assert asked == [(KERNEL, "sm_90")]
    with pytest.raises(CompileError, match="for sm_1: no"):
        compiled_kernels(KERNEL, "sm_1")
    assert compiled_kernels(KERNEL, "sm_2") is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_makes_machine_code_or_says_why_not() -> None:
    made = compiled_kernels(KERNEL, "sm_90")
    assert made is not None
    assert made.startswith(b"\x7fELF")
    ptx = compiled_kernels(KERNEL, "compute_80")
    assert ptx is not None
    assert b".target sm_80" in ptx
    assert ptx.endswith(b"\0"), "the driver would read on behind it"
    with pytest.raises(CompileError, match=r"nvcc can't compile the kernels: .*undefined"):
        compiled_kernels(KERNEL.replace(b"threadIdx", b"nowhere"), "sm_90")
