"""Sums of products as products of matrices: ``C[b, i, j] += A[b, i, k] * B[b, k, j]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.tvm.tiles import Product

WIDE = 4
"""Elements of 4 bytes that a thread copies at once: 16 bytes."""


def only_sum(schedule: Any) -> Any | None:
    """Return the function's sum; None unless all else that it computes is elementwise."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    sums = matmul.get_reduction_blocks(schedule, blocks)
    return None if sums is None else sums[0]


def as_product(schedule: Any, total: Any) -> None:
    """Give the sum ``total`` four axes: batch, row, column, term. Its reads are the left and right factor."""
    left = schedule.reindex(total, ("read", 0))
    right = schedule.reindex(total, ("read", 1))
    result = schedule.reindex(total, ("write", 0))
    kind = matmul.IterKind
    in_left, in_right, in_result, every = matmul.detect_iter_traits(schedule.get(total))

    def fused(traits: Any, *order: Any) -> Any:
        return matmul.make_iter_fusion_index_map(traits, list(order))

    s, i, j, k = kind.kIter_S, kind.kIter_I, kind.kIter_J, kind.kIter_K
    schedule.transform_layout(left, ("write", 0), fused(in_left, s, i, k))
    schedule.transform_layout(right, ("write", 0), fused(in_right, s, k, j))
    schedule.transform_layout(result, ("read", 0), fused(in_result, s, i, j))
    schedule.transform_block_layout(total, fused(every, s, i, j, k))


def size_of(schedule: Any, total: Any) -> Product:
    """Return the extents of a sum's four axes."""
    return Product(*(int(each.dom.extent) for each in schedule.get(total).iter_vars))


def wide_of(block: Any) -> int:
    """Return how many elements a thread may copy at once in a block that copies an operand of a product.

    Neighbours along the block's last axis have to be neighbours in memory, in groups that begin at multiples
    of 16 bytes.
    """
    last = block.iter_vars[-1].var
    (read,) = block.reads
    innermost = read.region[-1].min
    if isinstance(innermost, tirx.FloorMod):
        innermost = innermost.a if int(innermost.b) % WIDE == 0 else None
    adjacent = last.same_as(innermost) and int(read.source.ty.shape[-1]) % WIDE == 0
    return WIDE if adjacent else 1


def in_groups(function: Any) -> Any:
    """Return a scheduled function in which slices of operands are copied in groups of `WIDE` elements.

    What decides whether and from where an element is copied, such as a convolution's padding, is the same
    for a group; it is written so that TVM sees that, and makes one condition and one load of the group.
    """

    def store(statement: Any) -> Any:
        last = statement.indices[-1]
        if statement.buffer.scope() != "shared" or not isinstance(last, tirx.Var):
            return statement
        value = _by_group(statement.value, last)
        return tirx.BufferStore(statement.buffer, value, statement.indices)

    return rewritten(function, tirx.BufferStore, store)


def rewritten(function: Any, kind: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return a function in which each statement of a ``kind`` is what ``replaced`` returns for it."""
    body = tvm_ffi.structural_map(function.body, (kind, replaced))
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def with_room(function: Any, blocks: int) -> Any:
    """Return a function whose threads may take as many registers as so many blocks leave them.

    ``blocks``: of a multiprocessor at once. Without it the assembler may spill a few registers for one more.
    Threads of the function have a `threadIdx.y`.
    """
    count = tirx.const(blocks, "int32")

    def loop(statement: Any) -> Any:
        binding = statement.thread_binding
        if binding is None or binding.thread_tag != "threadIdx.y":
            return statement
        body = tirx.AttrStmt(count, "tirx.launch_bounds_min_blocks_per_sm", count, statement.body)
        kept = (statement.loop_var, statement.min, statement.extent, statement.kind)
        return tirx.For(*kept, body, binding, statement.annotations)

    return rewritten(function, tirx.For, loop)


def _by_group(value: Any, index: Any) -> Any:
    """Return the value with ``index`` written as a group's number and a place in the group."""
    group, place = tirx.Var("group", str(index.ty)), tirx.Var("place", str(index.ty))
    analyzer = sym.Analyzer()
    analyzer.bind(place, tvm.ir.Range(0, WIDE))
    divided = analyzer.simplify(_replaced(value, {index: group * WIDE + place}))
    return _replaced(divided, {group: index // WIDE, place: index % WIDE})


def _replaced(value: Any, variables: dict[Any, Any]) -> Any:
    def replace(variable: Any) -> Any:
        return variables.get(variable, variable)

    return tvm_ffi.structural_map(value, (tirx.Var, replace))
