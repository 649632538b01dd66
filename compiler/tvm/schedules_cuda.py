"""Schedules that divide loops among a GPU's blocks and threads.

Convolutions and products of matrices are sums ``C[i, j] += A[i, k] * B[k, j]`` over tiles: ``i`` is every
pixel of every row, ``j`` an output channel, ``k`` a term. The threads of a block fetch a slice of ``A`` and
``B`` into shared memory, neighbouring threads from neighbouring addresses, and each keeps a few sums in
registers. Padding is read as zeros while fetching, and what follows the sum (bias, activation, residual) is
computed when it is stored, so neither costs a launch. Where such blocks are fewer than the GPU's
multiprocessors, parts of the terms are summed by blocks of their own into an array of the workspace, and a
second kernel adds the parts of each element, always in the same order. ``tiles`` chooses the sizes. Products
of a few rows are in ``gemv``. All other functions take the general rules of TVM's dlight.

Grouped convolutions and pools are sums over a window of their own for each element: one thread computes one
element with what follows it, neighbouring threads neighbouring channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.artifact.manifest import FP32
from mainspring.compiler.artifact.target import Gpu
from mainspring.compiler.tvm import gemv, products, tensor_cores
from mainspring.compiler.tvm.products import as_product, in_groups, only_sum, size_of, wide_of, with_room
from mainspring.compiler.tvm.tiles import (
    Choice,
    Product,
    Tile,
    by_element,
    choose,
    in_parts,
    ranked,
    with_ahead,
)

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
