"""Kernels compiled by NVRTC, which needs its library and CUDA's headers and no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda import compiling
from mainspring.worker.engines.cuda.compiling import compile_with_nvrtc, header_folders

KERNEL = """
#include <cuda/std/cstdint>
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(32) twice(float* out, const float* in) {
  cuda::std::uint32_t i = threadIdx.x;
  out[i] = __half2float(__float2half(in[i])) * 2;
}
"""


@pytest.fixture
def nvrtc() -> Any:
    found = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda")
    try:
        found.nvrtcVersion()
    except RuntimeError:
        pytest.skip("NVRTC's library is not installed")
    if not header_folders():
        pytest.skip("CUDA's headers are not installed")
    return found


def test_a_kernel_becomes_machine_code(nvrtc: Any) -> None:
    code = compile_with_nvrtc(KERNEL, "sm_90")
    assert code.startswith(b"\x7fELF")
    assert b"twice" in code


def test_what_can_not_be_compiled_is_said_in_the_compilers_words(nvrtc: Any) -> None:
    with pytest.raises(EngineError, match=r"can't compile the kernels for sm_90: .*undefined_word"):
        compile_with_nvrtc(KERNEL.replace("threadIdx.x", "undefined_word"), "sm_90")
    with pytest.raises(EngineError, match=r"for sm_1: .*gpu-architecture"):
        compile_with_nvrtc(KERNEL, "sm_1")


class Library:
    """An NVRTC that answers as the real one does: a status, and what was asked for behind it."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.destroyed = 0

    def nvrtcCreateProgram(self, *_: object) -> tuple[int, int]:  # noqa: N802
        return 0, 17

    def nvrtcCompileProgram(self, program: int, count: int, options: list[bytes]) -> tuple[int]:  # noqa: N802
        assert (program, count) == (17, len(options))
        assert not any(b"fast_math" in option for option in options), "digits for speed"
        assert options[0] == b"--gpu-architecture=sm_90"
        return (self.status,)

    def nvrtcGetCUBINSize(self, _program: int) -> tuple[int, int]:  # noqa: N802
        return 5, 0

    def nvrtcGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, f"NVRTC_ERROR_{status}".encode()

    def nvrtcGetProgramLogSize(self, _program: int) -> tuple[int, int]:  # noqa: N802
        return 0, 8

    def nvrtcGetProgramLog(self, _program: int, log: bytes) -> tuple[int]:  # noqa: N802
        assert len(log) == 8
        return (0,)

    def nvrtcDestroyProgram(self, _program: int) -> tuple[int]:  # noqa: N802
        self.destroyed += 1
        return (0,)


@pytest.mark.parametrize(("status", "says"), [(6, "can't compile the kernels"), (0, "NVRTC_ERROR_5")])
def test_a_program_that_fails_is_destroyed(monkeypatch: pytest.MonkeyPatch, status: int, says: str) -> None:
    library = Library(status)
    monkeypatch.setattr(compiling, "_nvrtc", lambda: library)
    with pytest.raises(EngineError, match=says):
        compile_with_nvrtc("source", "sm_90")
    assert library.destroyed == 1
