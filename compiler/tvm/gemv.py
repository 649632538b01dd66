"""Products of a few rows and a matrix of weights on a GPU, and sums whose terms are divided into parts.

A product's time is that of reading the weights once, so there are many threads, each of which reads vectors
of 16 bytes that are next to its neighbours'. A thread computes a few adjacent columns of all rows over a few
terms; its block adds the parts of its threads in shared memory, and a second kernel with one thread for each
element those of the blocks, both in a fixed order. Weights stay as they are packed, a row for each term.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tvm import tirx
from tvm.s_tir.dlight.gpu import matmul

from mainspring.compiler.artifact.target import Gpu

MOST_ROWS = 3
"""More rows reuse what a tile fetches into shared memory."""
_OWN = 4
"""Adjacent columns of a thread: floats of 16 bytes."""
_MOST_COLUMNS, _LEAST_COLUMNS = 64, 32
"""Threads of a block side by side, each with columns of its own."""
_DEPTHS = (4, 2, 1)
"""Threads of a block that share columns; they also store the sums, so that each has as many."""
_ANSWER_S, _ASKED_BYTES = 650e-9, 32
"""Latency of busy memory, and the bytes that a thread has asked for by then: two vectors."""
_WARP = 32
"""Threads."""
_MOST_PARTS = 32
"""Most parts of the terms that the second kernel adds."""
_WORTH_BYTES = 256 * 1024
"""Weights for which a second kernel is worth its launch."""
_AT_ONCE = 8
"""Most vectors that a thread asks for before it uses the first; each takes four registers."""


class Shares(NamedTuple):
    """The division of a product among threads and blocks."""

    threads: int
    """Threads of a block side by side."""
    depth: int
    """Threads of a block that share columns."""
    parts: int
    """Parts of the terms that blocks of their own sum."""
    at_once: int
    """Terms of which a thread reads the weights before it multiplies."""
    vectors: bool
    """True if a thread's columns begin at a multiple of 16 bytes and none is missing."""


def shares(columns: int, terms: int, gpu: Gpu) -> Shares:
    """Divide a product of few rows for a GPU; parts of the terms are equal."""
    threads = largest_divisor(columns // _OWN, _MOST_COLUMNS) if columns % _OWN == 0 else 1
    vectors = threads >= _LEAST_COLUMNS
    depth = next(each for each in _DEPTHS if terms % each == 0)
    worth = 4 * columns * terms > _WORTH_BYTES
    wanted = threads_wanted(gpu) * gpu.processors * _OWN // (columns * depth) if worth else 1
    parts = largest_divisor(terms // depth, min(_MOST_PARTS, wanted))
    at_once = largest_divisor(terms // (depth * parts), _AT_ONCE)
    return Shares(threads if vectors else _LEAST_COLUMNS, depth, parts, at_once, vectors)


def threads_wanted(gpu: Gpu) -> int:
    """Return the threads of each multiprocessor that ask for weights as fast as memory delivers them."""
    arriving = gpu.memory_gb_s * 1e9 * _ANSWER_S / gpu.processors
    return max(_WARP, int(arriving / _ASKED_BYTES) // _WARP * _WARP)


def weights_of(block: Any) -> int | None:
    """Return which of a block's operands is the matrix of a product of few rows; None if it is none."""
    results = [each for each in block.iter_vars if each.iter_type == tirx.IterVar.DataPar]
    terms = [each.var for each in block.iter_vars if each.iter_type == tirx.IterVar.CommReduce]
    rows = math.prod(int(each.dom.extent) for each in results[:-1])
    if len(terms) != 1 or len(block.reads) != 2 or rows > MOST_ROWS:
        return None
    wanted = [*terms, results[-1].var]
    for operand, read in enumerate(block.reads):
        indices = [part.min for part in read.region]
        if len(indices) == len(wanted) and all(
            index.same_as(each) for index, each in zip(indices, wanted, strict=True)
        ):
            return operand
    return None


def stream(schedule: Any, total: Any, weights: int, divided: Shares) -> Any:
    """Arrange the sums of the blocks; return what stores them.

    ``total`` is the product, or the sum of one of its parts; ``weights`` says which operand is the matrix.
    """
    share, _ = schedule.split(schedule.get_loops(total)[-1], [divided.depth, None])
    own = schedule.rfactor(share, 0)
    schedule.set_scope(own, 0, "shared")
    *rows, share = schedule.get_loops(total)
    part = [rows.pop()] if divided.parts > 1 else []
    j_block, j_here = schedule.split(rows.pop(), [None, divided.threads * _OWN])
    schedule.reorder(*part, j_block, *rows, j_here, share)
    for loop, axis in zip((j_block, *part), ("blockIdx.x", "blockIdx.y"), strict=False):
        schedule.bind(loop, axis)
    schedule.compute_at(own, j_block, preserve_unit_loops=True)
    _own_sums(schedule, own, weights, divided)
    _, depth, thread = schedule.split(
        schedule.fuse(*rows, j_here), [None, divided.depth, divided.threads], preserve_unit_iters=True
    )
    schedule.bind(depth, "threadIdx.y")
    schedule.bind(thread, "threadIdx.x")
    stored = schedule.cache_write(total, 0, "local")
    schedule.reverse_compute_at(stored, thread, preserve_unit_loops=True)
    schedule.decompose_reduction(total, share)
    return stored


def _own_sums(schedule: Any, own: Any, weights: int, divided: Shares) -> None:
    """Have each thread sum its columns over its share of a block's terms."""
    axes = len(schedule.get(own).iter_vars)
    share, *rows, j, k = schedule.get_loops(own)[-axes:]
    j_thread, j_own = schedule.split(j, [divided.threads, _OWN])
    k_outer, k_inner = schedule.split(k, [None, divided.at_once])
    schedule.reorder(share, j_thread, k_outer, k_inner, *rows, j_own)
    schedule.bind(share, "threadIdx.y")
    schedule.bind(j_thread, "threadIdx.x")
    sums = schedule.cache_write(own, 0, "local")
    schedule.reverse_compute_at(sums, j_thread, preserve_unit_loops=True)
    read = schedule.cache_read(own, weights, "local")
    schedule.compute_at(read, k_outer, preserve_unit_loops=True)
    matmul.auto_inline_producers(schedule, read)
    each_term, columns = schedule.get_loops(read)[-2:]
    for loop in (each_term, k_inner, *rows, j_own):
        schedule.unroll(loop)
    if divided.vectors:
        schedule.vectorize(columns)
        schedule.vectorize(schedule.get_loops(sums)[-1])
    schedule.decompose_reduction(own, k_outer)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above ``most``; 1 if ``most`` is lower."""
    return next((each for each in range(min(number, most), 1, -1) if number % each == 0), 1)


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
