"""Sums of products on a GPU's tensor cores, which round both factors to TF32 or FP16 and add in FP32.

As in ``schedules``, the threads of a block fetch slices of both operands into shared memory; here they
round what they fetch, but for weights that lie in memory as FP16 (``half_weights``). Then each warp
multiplies by ``mma.sync``, on ``fragments`` of 16 by 8 sums. These stay in registers until what follows the
sum is computed and stored.

The same rounding is put into kernels for the CPU (`round_factors`), so a model is compared with ONNX Runtime
as a GPU would compute it, but for the order of additions.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.artifact.target import Gpu
from mainspring.compiler.tvm import fragments
from mainspring.compiler.tvm.fragments import LANES, MULTIPLY, STORED, ZEROS, lane_of, own_of
from mainspring.compiler.tvm.gemv import in_parts
from mainspring.compiler.tvm.products import (
    as_product,
    in_groups,
    only_sum,
    rewritten,
    size_of,
    wide_of,
    with_room,
)
from mainspring.compiler.tvm.tiles import (
    FRAGMENT_COLUMNS,
    FRAGMENT_ROWS,
    FRAGMENT_TERMS,
    WarpChoice,
    WarpTile,
    choose_warps,
)

_AT_ONCE = 16
"""Most elements or groups of `WIDE` that a thread reads before it stores the first: each takes registers."""
_PADDING = {TF32: (4, 8), FP16: (8, 8)}
"""Elements after each row of a slice in shared memory, so that a warp's lanes read different banks."""


def arranged(function: Any, gpu: Gpu, precision: str) -> Any | None:
    """Return the function arranged for tensor cores; None if it is not a product that is faster on them."""
    chosen = _chosen(function, gpu, precision)
    if chosen is None:
        return None
    schedule, total, (tile, parts) = chosen
    schedule.pad_einsum(total, [1, tile.rows, tile.columns, tile.depth * parts])
    _in_fragments(schedule, in_parts(schedule, total, parts, gpu), tile, precision)
    made = in_groups(schedule.mod["main"])
    if tile.least_blocks:
        made = with_room(made, tile.least_blocks)
    return _as_fetched(made, precision).with_attr("tirx.is_scheduled", True)


def rounded(function: Any, gpu: Gpu, precision: str) -> Any:
    """Return a function of loops that rounds as `arranged` does: to run on a CPU."""
    return function if _chosen(function, gpu, precision) is None else round_factors(function, precision)


def _chosen(function: Any, gpu: Gpu, precision: str) -> tuple[Any, Any, WarpChoice] | None:
    """Return a schedule with the function's product of FP32 numbers, and how it is divided.

    None if there is none, or none that is faster on tensor cores.
    """
    schedule = s_tir.Schedule(function)
    total = only_sum(schedule)
    if total is None or not _is_product(schedule.get(total)):
        return None
    as_product(schedule, total)
    choice = choose_warps(precision, size_of(schedule, total), gpu)
    return None if choice is None else (schedule, total, choice)


def _is_product(block: Any) -> bool:
    """Return whether a block is a product of matrices of FP32 numbers."""
    if not isinstance(block.body, tirx.BufferStore) or _factors(block.body) is None:
        return False
    return matmul.detect_iter_traits(block) is not None


def _factors(store: Any) -> tuple[Any, Any] | None:
    """Return the factors that ``store`` multiplies and adds to what it stores to; None if it does not."""
    added = store.value
    if not isinstance(added, tirx.Add) or not isinstance(added.b, tirx.Mul):
        return None
    loads = (added.a, added.b.a, added.b.b)
    if not all(isinstance(load, tvm.ir.TensorLoad) for load in loads):
        return None
    if not loads[0].source.same_as(store.buffer) or {str(load.ty) for load in loads} != {"float32"}:
        return None
    return loads[1], loads[2]


def round_factors(function: Any, precision: str) -> Any:
    """Return a function of loops whose products' factors are rounded as for tensor cores."""

    def store(statement: Any) -> Any:
        factors = _factors(statement)
        if factors is None:
            return statement
        left, right = (_rounded(factor, precision) for factor in factors)
        value = statement.value.a + left * right
        return tirx.BufferStore(statement.buffer, value, statement.indices)

    return rewritten(function, tirx.BufferStore, store)


def _rounded(value: Any, precision: str) -> Any:
    """Return an FP32 number rounded to a precision; TF32's ties away from zero, as ``cvt.rna`` does it."""
    if precision == FP16:
        return tirx.Cast("float32", tirx.Cast("float16", value))
    bits = tirx.Var("bits", "uint32")

    def constant(number: int) -> Any:
        return tirx.const(number, "uint32")

    # The largest NaN would become a negative zero by a carry.
    magnitude = tirx.min((bits & constant(0x7FFFFFFF)) + constant(0x1000), constant(0x7FFFFFFF))
    made = (magnitude & constant(0xFFFFE000)) | (bits & constant(0x80000000))
    return tirx.Let(bits, tirx.reinterpret("uint32", value), tirx.reinterpret("float32", made))


def _in_fragments(schedule: Any, total: Any, tile: WarpTile, precision: str) -> None:
    """Divide a sum of products among blocks and their warps: its axes are batch, row, column and term.

    Before the term may be the part that is summed.
    """
    batch, i, j, *parts, k = schedule.get_loops(total)
    i_block, i_warp, i_own, i_in = schedule.split(i, [None, tile.row_warps, tile.own_rows, FRAGMENT_ROWS])
    j_block, j_warp, j_own, j_in = schedule.split(
        j, [None, tile.column_warps, tile.own_columns, FRAGMENT_COLUMNS]
    )
    terms = FRAGMENT_TERMS[precision]
    k_slice, k_step, k_in = schedule.split(k, [None, tile.depth // terms, terms])
    blocks, steps = (i_block, j_block, i_warp, j_warp, k_slice), (k_step, i_own, j_own, i_in, j_in, k_in)
    schedule.reorder(*parts, batch, *blocks, *steps)
    if parts:
        batch = schedule.fuse(*parts, batch)
    warp = schedule.fuse(i_warp, j_warp)
    for loop, axis in (
        (batch, "blockIdx.z"),
        (j_block, "blockIdx.y"),
        (i_block, "blockIdx.x"),
        (warp, "threadIdx.y"),
    ):
        schedule.bind(loop, axis)
    schedule.annotate(warp, "pragma_unroll_explicit", 0)
    # A fragment is in registers only where every index of it is a number.
    for loop in (k_step, i_own, j_own):
        schedule.unroll(loop)
    stored = schedule.cache_write(total, 0, "warp")
    schedule.reverse_compute_at(stored, warp, preserve_unit_loops=True)
    for operand in (0, 1):
        _fetch(schedule, total, operand, k_slice, tile, precision)
    if not parts:
        matmul.auto_inline_consumer_chain(schedule, stored)
    zeros = schedule.decompose_reduction(total, k_slice)
    schedule.transform_layout(total, ("write", 0), _by_fragment)
    _store(schedule, stored)
    fragments.register()
    schedule.tensorize(schedule.get_loops(zeros)[-2], ZEROS)
    schedule.tensorize(schedule.get_loops(total)[-3], MULTIPLY + precision)


def _by_fragment(*axes: Any) -> tuple[Any, ...]:
    """Return the place of a sum among fragments: which one, whose lane's, which of its numbers."""
    *before, row, column = axes
    within = row % FRAGMENT_ROWS, column % FRAGMENT_COLUMNS
    return (*before, row // FRAGMENT_ROWS, column // FRAGMENT_COLUMNS, lane_of(*within), own_of(*within))


def _fetch(schedule: Any, total: Any, operand: int, at: Any, tile: WarpTile, precision: str) -> None:
    """Have a block's threads copy a slice of an operand into shared memory, rounded."""
    fetched = schedule.cache_read(total, operand, "shared")
    schedule.compute_at(fetched, at, preserve_unit_loops=True)
    if precision == FP16:
        schedule.unsafe_set_dtype(fetched, 0, STORED[precision])
    loop = schedule.fuse(*schedule.get_loops(fetched)[-3:])
    matmul.auto_inline_producers(schedule, fetched)
    wide = wide_of(schedule.get(fetched))
    rounds = -(-int(schedule.get(loop).extent) // (tile.warps * LANES * wide))
    at_once = next(count for count in range(min(rounds, _AT_ONCE), 0, -1) if rounds % count == 0)
    _, together, warp, lane, vector = schedule.split(
        loop, [None, at_once, tile.warps, LANES, wide], preserve_unit_iters=True
    )
    schedule.unroll(together)
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    if wide > 1:
        schedule.vectorize(vector)
    width = tile.columns if operand else tile.depth
    schedule.storage_align(fetched, 0, axis=1, factor=width, offset=_PADDING[precision][operand])


def _store(schedule: Any, stored: Any) -> None:
    """Have each lane compute what follows its own sums, and store it."""
    rows, columns = schedule.get_loops(stored)[-2:]
    i_own, i_half, i_lane = schedule.split(rows, [None, 2, 8])
    j_own, j_lane, j_pair = schedule.split(columns, [None, 4, 2])
    schedule.reorder(i_own, i_half, j_own, i_lane, j_lane, j_pair)
    for loop in (i_own, i_half, j_own):
        schedule.unroll(loop)
    schedule.bind(schedule.fuse(i_lane, j_lane), "threadIdx.x")
    schedule.vectorize(j_pair)


def _as_fetched(function: Any, precision: str) -> Any:
    """Return a scheduled function whose slices in shared memory are rounded.

    FP32 numbers to TF32; what lies in memory as FP16 is copied as it is.
    """

    def store(statement: Any) -> Any:
        if statement.buffer.scope() != "shared":
            return statement
        value = _rounded(statement.value, TF32) if precision == TF32 else _copied(statement.value)
        return tirx.BufferStore(statement.buffer, value, statement.indices)

    return rewritten(function, tirx.BufferStore, store)


def _copied(value: Any) -> Any:
    """Return an FP16 number as it lies in memory, if FP32 is only made of it to make FP16 again."""
    if not isinstance(value, tirx.Cast):
        return value
    wide = value.value
    if getattr(getattr(wide, "op", None), "name", "") == "prim.if_then_else":
        inside, number, otherwise = wide.args
        if isinstance(number, tirx.Cast) and str(number.value.ty) == "float16":
            return tirx.if_then_else(inside, number.value, tirx.Cast("float16", otherwise))
    return wide.value if isinstance(wide, tirx.Cast) and str(wide.value.ty) == "float16" else value
