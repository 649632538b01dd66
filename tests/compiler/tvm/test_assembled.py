"""The zoo's generated kernels, assembled for GPUs by NVRTC: each fits a multiprocessor, and none spills."""

from __future__ import annotations

import pytest

from mainspring.compiler.artifact.manifest import CUDA, FP16, FP32, PRECISIONS, TF32
from mainspring.compiler.artifact.nvrtc import NvrtcMissing, header_folders, kernel_resources
from mainspring.compiler.artifact.plan import SET_ADDRESSES, SOURCE, Shape
from mainspring.compiler.artifact.target import known_gpu
from mainspring.compiler.reference import Prepared
from mainspring.compiler.zoo.catalogue import build
from tests.compiler.tvm.conftest import copying_ahead

pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")

CASES = [
    *[(name, size, FP32) for name, size in (("digits", 2), ("resnet20", 1), ("squeezenet", 1))],
    *[("bert-tiny", 4, precision) for precision in PRECISIONS],
    *[("resnet50", 4, precision) for precision in PRECISIONS],
    *[("mobilenet", 8, precision) for precision in (TF32, FP16)],
]
"""Architectures of the zoo, each at a batch size and in a precision."""
ARCHS = ("sm_80", "sm_90")
"""GPUs; each case is assembled for one of them, in turn, to halve what these tests take."""
REGISTERS = 255
"""Most registers of a thread."""
SHARED_BYTES = 48 * 1024
"""Most static shared memory of a block."""
SPILLING = b"""extern "C" __global__ void __launch_bounds__(1024) spilling(const float* a, float* b) {
  float kept[96];
  #pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = a[i * 1024 + threadIdx.x];
  __syncthreads();
  float sum = 0.0f;
  #pragma unroll
  for (int i = 0; i < 96; ++i) sum += kept[i] * kept[95 - i] * b[i];
  __shared__ float all[1024];
  all[threadIdx.x] = sum;
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 96; ++i) b[i * 1024 + threadIdx.x] = kept[i] + all[1023 - threadIdx.x];
}
"""


@pytest.fixture(scope="module", autouse=True)
def _nvrtc() -> None:
    try:
        header_folders()
        kernel_resources(b"", "sm_90")
    except NvrtcMissing as error:
        pytest.skip(f"{error}: make test-codegen installs it")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "batch_size", "precision", "arch"),
    [(*case, ARCHS[index % 2]) for index, case in enumerate(CASES)],
)
def test_no_kernel_of_the_zoo_spills(
    name: str, batch_size: int, precision: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainspring.compiler.tvm import build as tvm_build
    from mainspring.compiler.tvm.fragments import MULTIPLY

    monkeypatch.setattr(tvm_build, "compiled_kernels", lambda *_: None)
    model = tvm_build.Model(Prepared(build(name), batch_size), [Shape(batch_size)])
    built = model.build(CUDA, known_gpu(arch), precision)
    assert (f"{MULTIPLY}{precision}(".encode() in built.files[SOURCE]) == (precision != FP32)
    found = kernel_resources(built.files[SOURCE], arch)
    print(f"{name}, batch of {batch_size}, {precision}, {arch}: {found}")
    launched = {launch.kernel for launch in built.plans.plan(batch_size).launches}
    assert found.keys() == launched | {SET_ADDRESSES}
    assert all(0 < each.registers <= REGISTERS for each in found.values())
    assert all(each.shared_bytes <= SHARED_BYTES for each in found.values())
    spills = {kernel: each for kernel, each in found.items() if each.spilled_bytes}
    assert not spills, f"for {arch} these spill: {spills}"
    stacks = {kernel: each for kernel, each in found.items() if each.stack_bytes}
    assert not stacks, f"for {arch} these keep arrays in the device's memory: {stacks}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "arch"), [("mobilenet", "sm_80"), ("resnet50", "sm_90")])
def test_no_kernel_that_copies_ahead_spills(name: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainspring.compiler.tvm import build as tvm_build

    monkeypatch.setattr(tvm_build, "compiled_kernels", lambda *_: None)
    with copying_ahead():
        source = (
            tvm_build.Model(Prepared(build(name), 1), [Shape(1)]).build(CUDA, known_gpu(arch)).files[SOURCE]
        )
    assert source.count(b"mainspring_wait();") >= 10
    found = kernel_resources(source, arch)
    assert all(each.shared_bytes <= SHARED_BYTES for each in found.values())
    spills = {kernel: each for kernel, each in found.items() if each.spilled_bytes or each.stack_bytes}
    assert not spills, f"for {arch} these spill: {spills}"


def test_a_kernel_that_spills_is_seen() -> None:
    (found,) = kernel_resources(SPILLING, "sm_80").values()
    assert found.registers <= 64, "1,024 threads share 65,536"
    assert found.shared_bytes == 4096
    assert found.spilled_bytes > 0
