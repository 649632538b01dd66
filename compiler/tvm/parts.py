"""Sums whose terms are divided into parts: blocks of their own sum each, and a second kernel adds the parts.

That kernel has one thread for each element, like the other kernels here, and adds in a fixed order.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.artifact.gpu import Gpu
from mainspring.compiler.tvm.gemv import largest_divisor

_MANY, _FEW = 256, 64
"""Threads of a block where there are enough blocks for every multiprocessor, and where there are not."""
_FEWEST = 32
"""Threads of a warp."""


def in_parts(schedule: Any, total: Any, parts: int, gpu: Gpu) -> Any:
    """Have a second kernel add parts of a sum, whose last axis is its terms; return what sums each part."""
    if parts == 1:
        return total
    part, _ = schedule.split(schedule.get_loops(total)[-1], [parts, None])
    partial = schedule.rfactor(part, 0)
    by_element(schedule, total, schedule.get_loops(total)[:-1], gpu)
    return partial


def by_element(schedule: Any, total: Any, results: list[Any], gpu: Gpu) -> None:
    """Have one thread compute one element of the ``results``, its terms one after the other."""
    elements = math.prod(int(schedule.get(loop).extent) for loop in results)
    threads = _MANY if elements >= gpu.processors * _MANY else _FEW
    whole = largest_divisor(elements, threads)
    if whole >= _FEWEST:
        # No thread is left over: a condition around each term would keep the next from being read early.
        threads = whole
    block, thread = schedule.split(schedule.fuse(*results), [None, threads])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    stored = schedule.cache_write(total, 0, "local")
    schedule.reverse_compute_at(stored, thread, preserve_unit_loops=True)
    matmul.auto_inline_consumer_chain(schedule, stored)
    schedule.decompose_reduction(total, schedule.get_loops(total)[2])
