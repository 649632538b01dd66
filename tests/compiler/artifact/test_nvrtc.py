"""NVRTC, which compiles kernels where there is neither a GPU nor ``nvcc``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from mainspring.compiler.artifact import nvrtc
from mainspring.compiler.artifact.nvrtc import NvrtcFailed, NvrtcMissing, compile_cuda, header_folders

KERNEL = b"""
#include <cuda/std/cstdint>
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(32) twice(float* out, const float* in) {
  cuda::std::uint32_t i = threadIdx.x;
  out[i] = __half2float(__float2half(in[i])) * 2;
}
"""


@pytest.fixture
def there() -> None:
    """Skip the test where NVRTC or CUDA's headers are missing."""
    try:
        nvrtc._nvrtc()
        header_folders()
    except NvrtcMissing as error:
        pytest.skip(str(error))


def test_a_kernel_becomes_machine_code_or_ptx(there: None) -> None:
    code = compile_cuda(KERNEL, "sm_90")
    assert code.startswith(b"\x7fELF")
    assert b"twice" in code
    ptx = compile_cuda(KERNEL, "compute_80")
    assert b".target sm_80" in ptx
    assert b".entry twice(" in ptx
    assert ptx.endswith(b"\0")


def test_what_can_not_be_compiled_is_said_in_the_compilers_words(there: None) -> None:
    with pytest.raises(NvrtcFailed, match=r"can't compile the kernels for sm_90: .*undefined_word"):
        compile_cuda(KERNEL.replace(b"threadIdx.x", b"undefined_word"), "sm_90")
    with pytest.raises(NvrtcFailed, match=r"for sm_1: .*gpu-architecture"):
        compile_cuda(KERNEL, "sm_1")


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have the search look into a folder of the test's own alone."""
    monkeypatch.setattr(nvrtc, "_roots", lambda: iter([tmp_path]))
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    header_folders.cache_clear()
    nvrtc._nvrtc.cache_clear()
    return tmp_path


def test_what_is_missing_is_named(nothing: Path) -> None:
    with pytest.raises(NvrtcMissing, match="NVRTC is not installed"):
        compile_cuda(KERNEL, "sm_90")
    (nothing / "lib").mkdir()
    (nothing / "lib/libnvrtc.so.13").write_bytes(b"no library")
    with pytest.raises(NvrtcMissing, match=r"not installed \(.*libnvrtc.so.13: "):
        compile_cuda(KERNEL, "sm_90")
    with pytest.raises(NvrtcMissing, match=r"CUDA's header cuda_fp16.h"):
        header_folders()


def test_headers_are_found_in_the_layouts_of_both_generations(nothing: Path) -> None:
    for folder in ("include/cuda/std", "include/cccl/cuda/std"):
        (nothing / folder).mkdir(parents=True)
    (nothing / "include/cuda_fp16.h").touch()
    (nothing / "include/cccl/cuda/std/cstdint").touch()
    assert header_folders() == (nothing / "include", nothing / "include/cccl")
    header_folders.cache_clear()
    (nothing / "include/cuda/std/cstdint").touch()
    assert header_folders() == (nothing / "include",)
