"""Fragments of the tensor cores: the sums of a warp, and the instructions that add products to them.

``mma.sync`` knows the 16 by 8 sums of a fragment as four numbers of each lane: `lane_of` and `own_of` say
which. TVM learns here what a warp does in place of which loops; the generated kernels call `DEVICE_CODE`.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as script

from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.tvm.tiles import FRAGMENT_COLUMNS, FRAGMENT_ROWS, FRAGMENT_TERMS

LANES = 32
_OWN = 4
"""Sums of a fragment that one lane keeps."""
STORED = {TF32: "float32", FP16: "float16"}
"""The dtype of a factor in shared memory."""

MULTIPLY = "mainspring_multiply_"
"""Prefix of the function that adds a product to a fragment, for TVM and in CUDA, before the precision."""

DEVICE_CODE = r"""
// One instruction of the tensor cores: sums += left * right, in the fragments that the PTX ISA describes.
#ifdef __CUDACC__
static __device__ __forceinline__ void mainspring_mma_tf32(
    float* sums, const unsigned* left, const unsigned* right) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
static __device__ __forceinline__ void mainspring_mma_fp16(
    float* sums, const unsigned* left, const unsigned* right) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
#endif
// A warp adds the product of 16 rows and 8 columns in shared memory; whose rows are `..._row` elements apart.
static __device__ __forceinline__ void mainspring_multiply_tf32(
    float* sums, const float* left, int left_row, const float* right, int right_row, int lane) {
  const int group = lane >> 2, place = lane & 3;
  const float* above = left + group * left_row + place;
  const float* below = above + 8 * left_row;
  const float* column = right + place * right_row + group;
  const float lefts[4] = {above[0], below[0], above[4], below[4]};
  const float rights[2] = {column[0], column[4 * right_row]};
  unsigned a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = (unsigned)__float_as_int(lefts[i]);
  for (int i = 0; i < 2; ++i) b[i] = (unsigned)__float_as_int(rights[i]);
  mainspring_mma_tf32(sums, a, b);
}
static __device__ __forceinline__ void mainspring_multiply_fp16(
    float* sums, const void* left, int left_row, const void* right, int right_row, int lane) {
  const int group = lane >> 2, place = lane & 3;
  const unsigned short* above = (const unsigned short*)left + group * left_row + 2 * place;
  const unsigned short* below = above + 8 * left_row;
  const unsigned short* column = (const unsigned short*)right + 2 * place * right_row + group;
  const unsigned a[4] = {
      *(const unsigned*)above, *(const unsigned*)below, *(const unsigned*)(above + 8),
      *(const unsigned*)(below + 8)};
  const unsigned b[2] = {
      column[0] | (unsigned)column[right_row] << 16,
      column[8 * right_row] | (unsigned)column[9 * right_row] << 16};
  mainspring_mma_fp16(sums, a, b);
}
"""
"""Functions that generated kernels call; on anything but a GPU others stand in for the two of assembler."""


def lane_of(row: Any, column: Any) -> Any:
    """Return the lane that keeps a sum of a fragment: PTX ISA, fragments of mma.m16n8k8 and m16n8k16."""
    return row % 8 * 4 + column // 2


def own_of(row: Any, column: Any) -> Any:
    """Return which of its lane's numbers a sum of a fragment is."""
    return row // 8 * 2 + column % 2


def _zeros() -> tuple[Any, Any]:
    """Return what sets a fragment to zeros, as loops and as its lanes do it."""

    @script.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def described(sums: script.handle) -> None:
        into = script.match_buffer(sums, (LANES, _OWN), "float32", offset_factor=1, scope="warp")
        with script.sblock("root"):
            script.reads()
            script.writes(into[0:LANES, 0:_OWN])
            for i, j in script.grid(FRAGMENT_ROWS, FRAGMENT_COLUMNS):
                with script.sblock("zero"):
                    row, column = script.axis.remap("SS", [i, j])
                    into[lane_of(row, column), own_of(row, column)] = script.float32(0)

    @script.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def by_lanes(sums: script.handle) -> None:
        into = script.match_buffer(sums, (LANES, _OWN), "float32", offset_factor=1, scope="warp")
        with script.sblock("root"):
            script.reads()
            script.writes(into[0:LANES, 0:_OWN])
            for lane in script.thread_binding(LANES, "threadIdx.x"):
                for own in script.unroll(_OWN):
                    into[lane, own] = script.float32(0)

    return described, by_lanes


def _product(precision: str) -> Any:
    """Return, as loops, what adds a product of slices in shared memory to a fragment."""
    terms, dtype, columns = FRAGMENT_TERMS[precision], STORED[precision], FRAGMENT_COLUMNS

    def factor(value: Any) -> Any:
        return value if dtype == "float32" else tirx.Cast("float32", value)

    @script.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def described(left: script.handle, right: script.handle, sums: script.handle) -> None:
        lefts = script.match_buffer(left, (FRAGMENT_ROWS, terms), dtype, offset_factor=1, scope="shared")
        rights = script.match_buffer(right, (terms, columns), dtype, offset_factor=1, scope="shared")
        into = script.match_buffer(sums, (LANES, _OWN), "float32", offset_factor=1, scope="warp")
        with script.sblock("root"):
            script.reads(into[0:LANES, 0:_OWN], lefts[0:FRAGMENT_ROWS, 0:terms], rights[0:terms, 0:columns])
            script.writes(into[0:LANES, 0:_OWN])
            for i, j, k in script.grid(FRAGMENT_ROWS, columns, terms):
                with script.sblock("multiply"):
                    row, column, term = script.axis.remap("SSR", [i, j, k])
                    into[lane_of(row, column), own_of(row, column)] = into[
                        lane_of(row, column), own_of(row, column)
                    ] + factor(lefts[row, term]) * factor(rights[term, column])

    return described


def _product_by_warp(precision: str) -> Any:
    """Return what a warp does in place of `_product`."""
    terms, dtype, function = FRAGMENT_TERMS[precision], STORED[precision], MULTIPLY + precision
    columns = FRAGMENT_COLUMNS

    @script.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def by_warp(left: script.handle, right: script.handle, sums: script.handle) -> None:
        row, next_row = script.int32(), script.int32()
        one, next_one = script.int32(), script.int32()
        lefts = script.match_buffer(
            left, (FRAGMENT_ROWS, terms), dtype, offset_factor=1, scope="shared", strides=[row, one]
        )
        rights = script.match_buffer(
            right, (terms, columns), dtype, offset_factor=1, scope="shared", strides=[next_row, next_one]
        )
        into = script.match_buffer(sums, (LANES, _OWN), "float32", offset_factor=1, scope="warp")
        with script.sblock("root"):
            script.reads(into[0:LANES, 0:_OWN], lefts[0:FRAGMENT_ROWS, 0:terms], rights[0:terms, 0:columns])
            script.writes(into[0:LANES, 0:_OWN])
            for lane in script.thread_binding(LANES, "threadIdx.x"):
                own = script.meta_var(script.address_of(into[lane, 0]))
                slices = script.meta_var((lefts.access_ptr("r"), row, rights.access_ptr("r"), next_row))
                script.evaluate(script.call_extern("void", function, own, *slices, lane))

    return by_warp


ZEROS = "mainspring_zeros"
"""The name of what sets a fragment to zeros."""


@functools.cache
def register() -> None:
    """Register with TVM what schedules name: `ZEROS`, and `MULTIPLY` in each precision.

    Parsing it takes as long as importing TVM, so only who multiplies on tensor cores does.
    """
    TensorIntrin.register(ZEROS, *_zeros())
    for precision in FRAGMENT_TERMS:
        TensorIntrin.register(MULTIPLY + precision, _product(precision), _product_by_warp(precision))
