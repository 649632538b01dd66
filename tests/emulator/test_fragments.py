"""The emulated tensor cores against the tables of the PTX ISA, read here once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.tvm.fragments import DEVICE_CODE
from tests.emulator.build import EmulationError, Program, compile_source
from tests.emulator.device import Array, Device, KernelLaunch, Pointer

KERNEL = """
extern "C" __global__ void __launch_bounds__(32) NAME(unsigned* __restrict__ a, float* __restrict__ out) {
  unsigned mine[6];
  for (int i = 0; i < 6; ++i) mine[i] = a[threadIdx.x * 10 + i];
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = __int_as_float((int)a[threadIdx.x * 10 + 6 + i]);
  CONDITION mainspring_mma_PRECISION(sums, mine, mine + 4);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i];
}
"""
KINDS = (("tf32", "tf32", ""), ("fp16", "fp16", ""), ("for_some", "tf32", "if (threadIdx.x != 5)"))
SOURCE = DEVICE_CODE + "".join(
    KERNEL.replace("NAME", name).replace("PRECISION", precision).replace("CONDITION", condition)
    for name, precision, condition in KINDS
)
# PTX ISA, "Matrix fragments for mma.m16n8k8" (.tf32) and "for mma.m16n8k16 with floating point type", with
# groupID = %laneid >> 2 and threadID_in_group = %laneid % 4:
#   .tf32 a: row = groupID for a0 and a2, groupID + 8 for a1 and a3;
#            col = threadID_in_group for a0 and a1, threadID_in_group + 4 for a2 and a3
#   .tf32 b: row = threadID_in_group for b0, threadID_in_group + 4 for b1; col = groupID
#   .f16 a:  row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, groupID + 8 otherwise;
#            col = threadID_in_group * 2 + (i & 1) for i < 4, threadID_in_group * 2 + (i & 1) + 8 otherwise
#   .f16 b:  row = threadID_in_group * 2 + (i & 1) for i < 2, the same + 8 otherwise; col = groupID
#   c, d:    row = groupID for c0 and c1, groupID + 8 for c2 and c3; col = threadID_in_group * 2 + (i & 1)
Lane = tuple[tuple[int, int], ...]
"""Row and column of each element that a lane has."""


def tf32_left(group: int, place: int) -> Lane:
    """Return the places of a0 to a3 of TF32."""
    return ((group, place), (group + 8, place), (group, place + 4), (group + 8, place + 4))


def tf32_right(group: int, place: int) -> Lane:
    """Return the places of b0 and b1 of TF32."""
    return ((place, group), (place + 4, group))


def fp16_left(group: int, place: int) -> Lane:
    """Return the places of a0 to a7 of FP16."""
    rows, columns = (0, 0, 8, 8, 0, 0, 8, 8), (0, 1, 0, 1, 8, 9, 8, 9)
    return tuple((group + row, 2 * place + column) for row, column in zip(rows, columns, strict=True))


def fp16_right(group: int, place: int) -> Lane:
    """Return the places of b0 to b3 of FP16."""
    return tuple((2 * place + row, group) for row in (0, 1, 8, 9))


def sums_of(group: int, place: int) -> Lane:
    """Return the places of c0 to c3."""
    return tuple((group + row, 2 * place + column) for row, column in ((0, 0), (0, 1), (8, 0), (8, 1)))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A kernel of one warp for each precision, and one of which a lane takes no part."""
    return compile_source(SOURCE, tmp_path_factory.mktemp("fragments"))


def spread(matrix: Array, places: Callable[[int, int], Lane]) -> Array:
    """Return each lane's elements of a matrix, as registers of 32 bits."""
    lanes = [[matrix[place] for place in places(lane >> 2, lane % 4)] for lane in range(32)]
    return np.array(lanes, matrix.dtype).view(np.uint32)


def multiplied(kernels: Program, name: str, left: Array, right: Array, sums: Array) -> Array:
    """Run the instruction; return the sums by row and column."""
    half = left.dtype == np.float16
    registers = np.concatenate(
        [
            spread(left, fp16_left if half else tf32_left),
            spread(right, fp16_right if half else tf32_right),
            spread(sums, sums_of),
        ],
        axis=1,
    )
    device = Device(kernels, 1)
    device.give("a", registers)
    device.make("out", 512)
    arguments = (Pointer("a", 0, registers.nbytes), Pointer("out", 0, 512, writes=True))
    made = device.run([KernelLaunch(name, (1, 1, 1), (32, 1, 1), arguments)])["out"].view(np.float32)
    found = np.full((16, 8), np.nan, np.float32)
    for lane in range(32):
        for i, place in enumerate(sums_of(lane >> 2, lane % 4)):
            found[place] = made[lane * 4 + i]
    return found


def test_halves_are_multiplied_and_added_in_32_bits(kernels: Program) -> None:
    random = np.random.default_rng(0)
    left, right = random.standard_normal((16, 16)), random.standard_normal((16, 8))
    left, right = left.astype(np.float16), right.astype(np.float16)
    sums = random.standard_normal((16, 8)).astype(np.float32)
    expected = sums + left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(multiplied(kernels, "fp16", left, right, sums), expected, rtol=1e-6, atol=1e-6)


def test_of_32_bits_tf32_reads_the_upper_19(kernels: Program) -> None:
    random = np.random.default_rng(1)
    left = random.standard_normal((16, 8)).astype(np.float32)
    right = random.standard_normal((8, 8)).astype(np.float32)
    sums = random.standard_normal((16, 8)).astype(np.float32)
    short = [
        (each.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for each in (left, right)
    ]
    found = multiplied(kernels, "tf32", left, right, sums)
    np.testing.assert_allclose(found, sums + short[0] @ short[1], rtol=1e-6, atol=1e-6)
    assert np.abs(found - (sums + left.astype(np.float64) @ right)).max() > 1e-4


def test_every_lane_of_the_warp_takes_part(kernels: Program) -> None:
    ones = np.ones((16, 8), np.float32)
    with pytest.raises(EmulationError, match=r"deadlock: it waits at line|needs all lanes of its warp"):
        multiplied(kernels, "for_some", ones, ones[:8], ones)


def test_the_instructions_are_those_that_are_emulated() -> None:
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {" in DEVICE_CODE
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {" in DEVICE_CODE
    assert (Path(__file__).parent / "device.h").read_text().count("#define mainspring_mma_") == 2
