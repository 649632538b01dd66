"""Sums of products as products of matrices: ``C[b, i, j] += A[b, i, k] * B[b, k, j]``."""

from __future__ import annotations

from typing import Any

from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.tvm.tiles import Product


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
