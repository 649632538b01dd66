"""The choice of tile sizes for a sum of products on a GPU's tensor cores: a model of its time. Pure.

A block's warps share its tile. A warp keeps fragments of 16 by 8 sums; an instruction of the tensor cores
adds 8 (TF32) or 16 (FP16) terms to one of them. The model counts what a block's slice of terms costs a
multiprocessor: the tensor cores' instructions or the reads from shared memory that feed them, whichever
takes longer, and the instructions that fetch the slice. Waiting for memory and adding parts of sums are as in
``tiles``, so the two models' cycles can be compared: a product runs on tensor cores only where that is faster
on paper.
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.compiler.artifact.gpu import Gpu
from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.tvm.tiles import (
    PARTS,
    Block,
    Product,
    adding,
    blocks,
    choose,
    cycles,
    sensible,
    slices_of,
    with_waiting,
)

FRAGMENT_ROWS, FRAGMENT_COLUMNS = 16, 8
"""Sums of a fragment, of both precisions."""
FRAGMENT_TERMS = {TF32: 8, FP16: 16}
"""Terms that an instruction adds to a fragment."""
_TIMES_TF32 = {TF32: 1, FP16: 2}
"""Speed of the tensor cores by precision, as a multiple of TF32's."""
_BYTES = {TF32: 4, FP16: 2}
"""Bytes of a factor in shared memory, by precision."""
_READS = {TF32: (4, 2), FP16: (4, 4)}
"""Reads from shared memory of a warp for one fragment of the left and of the right operand."""
_FETCHED, _ADJACENT = 8, 4
"""Fetches of a multiprocessor in a cycle: some 16 instructions for each; adjacent elements of one."""
_LANES = 32
"""Threads of a warp."""
_PARTITIONS = 4
"""Parts of a multiprocessor, each with tensor cores of its own: fewer warps leave some of them idle."""


class WarpTile(NamedTuple):
    """The tile that one block computes: its warps' fragments, ``depth`` terms at a time."""

    row_warps: int
    column_warps: int
    own_rows: int
    """Fragments of a warp, one below the other."""
    own_columns: int
    """Fragments of a warp, side by side."""
    depth: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.row_warps * self.own_rows * FRAGMENT_ROWS

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.column_warps * self.own_columns * FRAGMENT_COLUMNS

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.row_warps * self.column_warps

    @property
    def least_blocks(self) -> int:
        """Blocks that a multiprocessor's registers have to be enough for; 0: the assembler decides."""
        few_sums = self.own_rows * self.own_columns < _MANY_FRAGMENTS
        return max(1, _LEAST_WARPS // self.warps) if few_sums else 0


class WarpChoice(NamedTuple):
    """The division of a sum of products among warps."""

    tile: WarpTile
    parts: int = 1
    """Parts of the terms that are summed by blocks of their own, and then added."""


_LEAST_WARPS = 16
"""Warps of a multiprocessor whose threads have up to 128 registers each: for more, some spill."""
_MANY_FRAGMENTS = 16
"""Fragments of a warp with which each thread takes about 128 registers anyway."""
_SHAPES = (
    (2, 4, 4, 4),
    (2, 2, 4, 4),
    (4, 2, 2, 4),
    (2, 2, 2, 4),
    (2, 2, 2, 2),
    (4, 1, 1, 4),
    (1, 4, 2, 2),
    (2, 2, 1, 2),
    (1, 4, 1, 2),
)
"""Warps and fragments of the choices, the largest first: from 128 x 128 to 16 x 64 sums."""
_DEPTHS = {TF32: (32,), FP16: (64, 32)}
"""Terms of a slice: at most 128 bytes of a row."""


def warp_tiles(precision: str) -> tuple[WarpTile, ...]:
    """Return the choices for a precision, the largest first."""
    return tuple(WarpTile(*shape, depth) for shape in _SHAPES for depth in _DEPTHS[precision])


def choose_warps(precision: str, product: Product, gpu: Gpu) -> WarpChoice | None:
    """Return what the model finds fastest; None where the FP32 kernels are at least as fast.

    What does not fill one fragment is not considered.
    """
    _, rows, columns, terms = product
    if not gpu.tensor_products:
        return None
    if rows < FRAGMENT_ROWS or columns < FRAGMENT_COLUMNS or terms < FRAGMENT_TERMS[precision]:
        return None
    every = (WarpChoice(tile, parts) for tile in warp_tiles(precision) for parts in PARTS)
    choices = [choice for choice in every if sensible(choice, product, gpu)]
    best = min(choices, key=lambda choice: _cycles(precision, choice, product, gpu))
    without = cycles(choose(product, gpu), product, gpu)
    return best if _cycles(precision, best, product, gpu) < without else None


def _cycles(precision: str, choice: WarpChoice, product: Product, gpu: Gpu) -> float:
    tile, slices = choice.tile, slices_of(choice, product)
    steps = tile.depth // FRAGMENT_TERMS[precision]
    rate = gpu.tensor_products * _TIMES_TF32[precision] * min(tile.warps, _PARTITIONS) / _PARTITIONS
    multiplying = tile.rows * tile.columns * tile.depth / rate
    left, right = _READS[precision]
    reading = tile.warps * steps * (tile.own_rows * left + tile.own_columns * right)
    # Neither rows nor pixels end within a group of these where both factors' rows are made of whole groups.
    together = 1 if product.terms % _ADJACENT or product.columns % _ADJACENT else _ADJACENT
    fetching = (tile.rows + tile.columns) * tile.depth / (_FETCHED * together)
    shares = -(-blocks(choice, product) // gpu.processors)
    busy = shares * slices * (max(multiplying, reading) + fetching)
    sums = tile.own_rows * tile.own_columns * FRAGMENT_ROWS * FRAGMENT_COLUMNS // _LANES
    block = Block(tile.warps * _LANES, sums, (tile.rows + tile.columns) * tile.depth * _BYTES[precision])
    return with_waiting(busy, slices, shares, block, gpu) + adding(choice, product, gpu)
