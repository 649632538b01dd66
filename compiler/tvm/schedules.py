"""Schedules of loops: among a GPU's blocks and threads, or in one thread of a CPU with vectors.

Convolutions and products of matrices are sums ``C[i, j] += A[i, k] * B[k, j]`` over tiles: ``i`` is every
pixel of every row, ``j`` an output channel, ``k`` a term. The threads of a block fetch a slice of ``A`` and
``B`` into shared memory, neighbouring threads from neighbouring addresses, and each keeps a few sums in
registers. Padding is read as zeros while fetching, and what follows the sum (bias, activation, residual) is
computed when it is stored, so neither costs a launch. Where such blocks are fewer than the GPU's
multiprocessors, blocks of their own sum parts of the terms, and a second kernel adds the parts in a fixed
order. ``tiles`` chooses the sizes. Grouped convolutions and pools have one thread for each element and what
follows it. All other functions take the general rules of TVM's dlight.

On a CPU the sums for a few neighbouring pixels and one or more vectors of channels stay in registers while
all terms are added. The weights of one tile of channels are read for all pixels before the next tile's, so
they stay in the second-level cache. A function that does not fit keeps its plain loops, which compute the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.artifact.manifest import FP32
from mainspring.compiler.artifact.target import Gpu
from mainspring.compiler.tvm import gemv, products, tensor_cores
from mainspring.compiler.tvm.gemv import by_element, in_parts
from mainspring.compiler.tvm.products import as_product, in_groups, only_sum, size_of, wide_of, with_room
from mainspring.compiler.tvm.tiles import Choice, Product, Tile, choose, ranked, with_ahead

_LANES = 8
"""Floats in a vector of AVX2."""
_REGISTERS = 14
"""Vector registers that sums may take; the others of the sixteen hold terms."""


def schedule_cpu(module: Any) -> Any:
    """Return the module with each function's loops arranged for the CPU.

    An array that only one loop needs is made in that loop, so that a tile's sums are no larger than the tile.
    """
    functions = {variable: _scheduled(function) for variable, function in module.functions.items()}
    passes = (s_tir.transform.LowerInitBlock(), s_tir.transform.PlanAndUpdateBufferAllocationLocation())
    return tvm.transform.Sequential(passes)(tvm.IRModule(functions))


def _scheduled(function: Any) -> Any:
    """Return the function arranged as far as it fits."""
    schedule = s_tir.Schedule(function)
    _inline(schedule)
    plain = schedule.mod["main"]
    try:
        _tile_sum(schedule)
    except (s_tir.schedule.ScheduleError, _Unfit):
        return plain
    return schedule.mod["main"]


class _Unfit(Exception):
    """The function is not of the form that this file arranges."""


def _inline(schedule: Any) -> None:
    """Inline elementwise computations where they are used, except padding.

    The condition of a padded image would be in the innermost loop, so the padded image is made first.
    """
    for block in _blocks(schedule):
        if _is_sum(schedule, block) or _is_padding(schedule, block):
            continue
        try:
            schedule.compute_inline(block)
        except s_tir.schedule.ScheduleError:
            continue


def _tile_sum(schedule: Any) -> None:
    """Arrange the function's only sum in tiles; raise `_Unfit` or ScheduleError if that is impossible."""
    sums = [block for block in _blocks(schedule) if _is_sum(schedule, block)]
    if len(sums) != 1:
        raise _Unfit
    (total,) = sums
    consumers = schedule.get_consumers(total)
    if len(consumers) > 1:
        raise _Unfit
    stored = consumers[0] if consumers else schedule.cache_write(total, 0, "global")
    loops = schedule.get_loops(stored)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    if len(loops) < 2 or len(loops) != _spatial(schedule, total):
        raise _Unfit
    tile = _tile(extents[-2], extents[-1])
    *outer, rows, columns = loops
    rows_outer, rows_inner = schedule.split(rows, [None, tile.rows])
    columns_outer, columns_inner = schedule.split(columns, [None, tile.columns])
    schedule.reorder(columns_outer, *outer, rows_outer, rows_inner, columns_inner)
    schedule.compute_at(total, rows_outer)
    _spread(schedule, [rows_inner, columns_inner])
    _arrange_terms(schedule, total, len(loops))


def _arrange_terms(schedule: Any, total: Any, outer: int) -> None:
    """Add one term after the other to a whole tile, whose sums begin at zero in registers."""
    loops = schedule.get_loops(total)[outer:]
    kinds = _kinds(schedule, total)[outer:]
    tiles = [loop for loop, kind in zip(loops, kinds, strict=True) if not kind]
    terms = [loop for loop, kind in zip(loops, kinds, strict=True) if kind]
    if not terms:
        raise _Unfit
    schedule.reorder(*terms, *tiles)
    _spread(schedule, tiles)
    initial = schedule.decompose_reduction(total, terms[0])
    *others, lanes = schedule.get_loops(initial)[outer:]
    for loop in others:
        schedule.unroll(loop)
    schedule.vectorize(lanes)


def _spread(schedule: Any, tiles: list[Any]) -> None:
    """Run the loops over a tile as vectors of one register each, all of them unrolled."""
    *others, columns = tiles
    vectors, lanes = schedule.split(columns, [None, _LANES])
    for loop in (*others, vectors):
        schedule.unroll(loop)
    schedule.vectorize(lanes)


class _Tile(NamedTuple):
    rows: int
    columns: int


def _tile(rows: int, columns: int) -> _Tile:
    """Return the tile with the most multiplications for each load that divides the extents.

    Raises `_Unfit` where no tile is as wide as a vector.
    """
    best, best_gain = None, 0.0
    for vectors in range(1, _REGISTERS + 1):
        if columns % (vectors * _LANES):
            continue
        for count in range(1, _REGISTERS // vectors + 1):
            gain = vectors * count / (vectors + count)
            if rows % count == 0 and gain > best_gain:
                best, best_gain = _Tile(count, vectors * _LANES), gain
    if best is None:
        raise _Unfit
    return best


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _is_sum(schedule: Any, block: Any) -> bool:
    """Return whether the block reduces an axis: a sum, a maximum."""
    return schedule.get(block).init is not None


def _is_padding(schedule: Any, block: Any) -> bool:
    """Return whether the block reads under a condition, and a sum reads its result."""
    if not any(_is_sum(schedule, consumer) for consumer in schedule.get_consumers(block)):
        return False
    found: list[Any] = []

    def called(call: Any) -> None:
        if str(getattr(call.op, "name", "")).endswith(".if_then_else"):
            found.append(call)

    tvm_ffi.structural_walk(schedule.get(block).body, [(tvm.ir.Call, called)])
    return bool(found)


def _spatial(schedule: Any, block: Any) -> int:
    """Return how many axes the block's result has."""
    return sum(each.iter_type == tirx.IterVar.DataPar for each in schedule.get(block).iter_vars)


def _kinds(schedule: Any, block: Any) -> list[bool]:
    """Return for each loop around the block whether it goes over terms of a sum."""
    loops = schedule.get_loops(block)
    realize = schedule.get(loops[-1]).body
    terms: set[Any] = set()
    for value, each in zip(realize.iter_values, schedule.get(block).iter_vars, strict=True):
        if each.iter_type != tirx.IterVar.DataPar:
            terms.update(tirx.analysis.undefined_vars(value))
    return [schedule.get(loop).loop_var in terms for loop in loops]


_ROOMY = 512
"""Threads of a multiprocessor that copy ahead and have up to 128 registers each, so that none is spilled."""
_UNROLLED = 256
"""Steps of nested loops that the GPU's compiler is asked to unroll."""


def schedule_cuda(
    module: Any, gpu: Gpu, chosen: Mapping[str, Choice] | None = None, precision: str = FP32
) -> Any:
    """Return the module with each function's loops bound to blocks and threads.

    ``chosen`` has, by the function's name, what is known to be fast on the GPU; for all others the model of
    `tiles` chooses. ``precision``: what factors of products are rounded to, for tensor cores, where these
    are faster.
    """
    known = chosen or {}
    functions = {
        variable: _on_tensor_cores(function, gpu, precision)
        or _arranged(function, gpu, known.get(str(variable.name_hint)))
        for variable, function in module.functions.items()
    }
    of = dlight.gpu
    rules = (of.GEMV(), of.Reduction(), of.GeneralReduction(), of.Fallback())
    return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule(functions))


def candidates(function: Any, product: Product, gpu: Gpu) -> tuple[Choice, ...]:
    """Return every choice that `schedule_cuda` takes for a function, the model's own first.

    ``product`` is the function's. Slices are copied ahead from `products.OLDEST` on.
    """
    choices = ranked(product, gpu)
    if int(gpu.arch.removeprefix("sm_").rstrip("af")) < products.OLDEST:
        return choices
    copies = products.copies_only(_arranged(function, gpu, choices[0]))
    return with_ahead(choices, product) if copies else choices


def product_of(function: Any) -> Product | None:
    """Return the size of the sum of products that is computed in tiles; None if a function has none."""
    schedule = s_tir.Schedule(function)
    total = only_sum(schedule)
    if total is None or matmul.detect_iter_traits(schedule.get(total)) is None:
        return None
    if gemv.weights_of(schedule.get(total)) is not None:
        return None
    as_product(schedule, total)
    return size_of(schedule, total)


def _on_tensor_cores(function: Any, gpu: Gpu, precision: str) -> Any | None:
    return None if precision == FP32 else tensor_cores.arranged(function, gpu, precision)


def _arranged(function: Any, gpu: Gpu, chosen: Choice | None) -> Any:
    """Return the function, arranged if it is a sum of products or over windows."""
    schedule = s_tir.Schedule(function)
    total = only_sum(schedule)
    if total is None:
        return function
    block = schedule.get(total)
    weights = None if chosen else gemv.weights_of(block)
    ahead = 0
    if weights is not None:
        _as_stream(schedule, total, weights, gpu)
    elif matmul.detect_iter_traits(block) is not None:
        as_product(schedule, total)
        choice = chosen or choose(size_of(schedule, total), gpu)
        _as_choice(schedule, total, choice, gpu)
        ahead = choice.tile.threads if choice.ahead else 0
    elif _has_windows(block):
        matmul.auto_inline_producers(schedule, total)
        by_element(schedule, total, _results(schedule, total), gpu)
    else:
        return function
    made = in_groups(schedule.mod["main"]).with_attr("tirx.is_scheduled", True)
    if not ahead:
        return made
    return with_room(made, _ROOMY // ahead).with_attr(products.MARK, True)


def _has_windows(block: Any) -> bool:
    """Return whether a term's place is computed from the result's, as in a convolution or a pool."""
    indices = [part.min for region in block.reads for part in region.region]
    return any(not isinstance(index, tvm.ir.Var | tirx.IntImm) for index in indices)


def _results(schedule: Any, total: Any) -> list[Any]:
    """Return the loops over the results of a block whose loops are in its axes' order."""
    return [
        loop
        for loop, each in zip(schedule.get_loops(total), schedule.get(total).iter_vars, strict=True)
        if each.iter_type == tirx.IterVar.DataPar
    ]


def _as_stream(schedule: Any, total: Any, weights: int, gpu: Gpu) -> None:
    """Arrange a product of a few rows so that weights are read once, as fast as memory gives them."""
    columns, terms = (int(each.dom.extent) for each in schedule.get(total).iter_vars[-2:])
    divided = gemv.shares(columns, terms, gpu)
    partial = in_parts(schedule, total, divided.parts, gpu)
    stored = gemv.stream(schedule, partial, weights, divided)
    if divided.parts == 1:
        matmul.auto_inline_consumer_chain(schedule, stored)


def _as_choice(schedule: Any, total: Any, choice: Choice, gpu: Gpu) -> None:
    """Arrange a sum of products in tiles, the parts of its terms in blocks of their own."""
    tile, parts, _ = choice
    schedule.pad_einsum(total, [1, tile.rows, tile.columns, tile.depth * parts])
    _in_tiles(schedule, in_parts(schedule, total, parts, gpu), tile)


def _in_tiles(schedule: Any, total: Any, tile: Tile) -> Any:
    """Divide a sum of products into tiles, one for each block."""
    *batch, k = schedule.get_loops(total)
    batch, i, j, *parts = batch
    i_block, i_thread, i_own = schedule.split(i, [None, tile.row_threads, tile.own_rows])
    j_block, j_thread, j_own = schedule.split(j, [None, tile.column_threads, tile.own_columns])
    k_slice, k_inner = schedule.split(k, [None, tile.depth])
    schedule.reorder(*parts, batch, i_block, j_block, i_thread, j_thread, k_slice, k_inner, i_own, j_own)
    if parts:
        batch = schedule.fuse(*parts, batch)
    for loop, axis in (
        (batch, "blockIdx.z"),
        (j_block, "blockIdx.y"),
        (i_block, "blockIdx.x"),
        (i_thread, "threadIdx.y"),
        (j_thread, "threadIdx.x"),
    ):
        schedule.bind(loop, axis)
    schedule.annotate(j_thread, "pragma_auto_unroll_max_step", _UNROLLED)
    schedule.annotate(j_thread, "pragma_unroll_explicit", 0)
    stored = schedule.cache_write(total, 0, "local")
    schedule.reverse_compute_at(stored, j_thread, preserve_unit_loops=True)
    for operand in (0, 1):
        _fetch(schedule, total, operand, k_slice, tile)
    if not parts:
        matmul.auto_inline_consumer_chain(schedule, stored)
    schedule.decompose_reduction(total, k_slice)


def _fetch(schedule: Any, total: Any, operand: int, at: Any, tile: Tile) -> Any:
    """Have a block's threads copy a slice of an operand into shared memory, in the operand's order."""
    fetched = schedule.cache_read(total, operand, "shared")
    schedule.compute_at(fetched, at, preserve_unit_loops=True)
    matmul.auto_inline_producers(schedule, fetched)
    wide = wide_of(schedule.get(fetched))
    loop = schedule.fuse(*schedule.get_loops(fetched)[-3:])
    _, row, column, vector = schedule.split(
        loop, [None, tile.row_threads, tile.column_threads, wide], preserve_unit_iters=True
    )
    schedule.bind(row, "threadIdx.y")
    schedule.bind(column, "threadIdx.x")
    if wide > 1:
        schedule.vectorize(vector)
    if operand == 0:
        # Otherwise all rows of the slice would begin in the same bank of shared memory.
        schedule.storage_align(fetched, 0, axis=1, factor=tile.depth, offset=wide)
    return fetched
