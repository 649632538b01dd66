"""The choice of tile sizes for a sum of products on a GPU: a model of its time, not a measurement.

Large tiles reuse what they fetch; small ones make enough blocks for every multiprocessor, and so do parts of
the terms, at the price of a second kernel that adds them in a fixed order. For each choice the model takes
the larger of two times: that of the multiplications, with every multiprocessor computing its share of the
blocks, and that of one block going through its slices, each of which waits for memory once.

On tensor cores a block's warps share its tile; an instruction adds 8 (TF32) or 16 (FP16) terms to a fragment
of 16 by 8 sums. Counted is what a block's slice of terms costs a multiprocessor: the instructions or the
reads from shared memory that feed them, whichever takes longer, and the instructions that fetch the slice. A
product runs on tensor cores only where that is faster on paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.artifact.target import Gpu

_SLICE_S = 250e-9
"""Time of fetching a slice and two barriers, if nothing hides it."""
_HIDDEN = 4
"""Blocks on one multiprocessor hide each other's waits, up to about this number."""
_ADDING_S = 1.5e-6
"""Time of a second kernel that adds parts of sums, if it had nothing to read."""
_CACHED_BYTES = 24
"""Bytes that one multiprocessor reads from or writes to the second-level cache in a cycle."""
_OTHER_REGISTERS = 40
"""Registers of a thread beside those of its sums: factors, addresses and counters."""


class Block(NamedTuple):
    """The resources of a multiprocessor that one block uses."""

    threads: int
    sums: int
    """Sums of each thread, in registers."""
    shared_bytes: int


class Tile(NamedTuple):
    """The tile that one block computes: ``rows`` by ``columns`` sums, ``depth`` terms at a time."""

    row_threads: int
    column_threads: int
    own_rows: int
    """Rows of sums that one thread keeps."""
    own_columns: int
    depth: int = 16

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.row_threads * self.own_rows

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.column_threads * self.own_columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_threads * self.column_threads

    @property
    def block(self) -> Block:
        """Return a block's resources of a multiprocessor: a slice of each operand, rows of the first
        padded."""
        slices = self.rows * (self.depth + 4) + self.depth * self.columns
        return Block(self.threads, self.own_rows * self.own_columns, 4 * slices)


class Area(Protocol):
    """The area that a block computes: sums, and the terms of a slice."""

    @property
    def rows(self) -> int:
        """Rows of a block."""

    @property
    def columns(self) -> int:
        """Columns of a block."""

    @property
    def depth(self) -> int:
        """Terms at a time."""


class Division(Protocol):
    """A tile, and the parts of the terms, of kernels of any kind."""

    @property
    def tile(self) -> Area:
        """Return the area that one block computes."""

    @property
    def parts(self) -> int:
        """Parts of the terms that are summed by blocks of their own, and then added."""


class Choice(NamedTuple):
    """The division of a sum of products."""

    tile: Tile
    parts: int = 1
    """Parts of the terms that are summed by blocks of their own, and then added."""
    ahead: bool = False
    """True if each slice is copied in the background while the one before it is multiplied."""


class Product(NamedTuple):
    """The size of a sum of products."""

    batch: int
    rows: int
    columns: int
    terms: int


TILES = (
    Tile(16, 16, 4, 4),
    Tile(8, 16, 4, 4),
    Tile(16, 8, 4, 4),
    Tile(8, 16, 4, 2),
    Tile(8, 16, 2, 4),
    Tile(8, 16, 2, 2),
    Tile(8, 16, 1, 2),
    Tile(4, 32, 1, 2),
    Tile(4, 16, 1, 1),
    Tile(2, 32, 1, 1),
)
"""The tiles, the largest first."""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Parts that the terms are divided into."""
_LEAST_SLICES = 2
"""Slices that a part has at least."""
_MOST_SHARE = 4
"""Blocks for each multiprocessor, beyond which no sum is divided into parts."""


def ranked(product: Product, gpu: Gpu) -> tuple[Choice, ...]:
    """Return every sensible choice for a sum, the one that the model finds fastest first."""
    choices = [
        choice
        for choice in (Choice(tile, parts) for tile in TILES for parts in PARTS)
        if sensible(choice, product, gpu)
    ]
    return tuple(sorted(choices, key=lambda choice: cycles(choice, product, gpu)))


def choose(product: Product, gpu: Gpu) -> Choice:
    """Return the choice that the model finds fastest for a sum; of equals the one with the largest tile."""
    return ranked(product, gpu)[0]


def blocks(choice: Division, product: Product) -> int:
    """Return how many blocks compute a sum or its parts."""
    return choice.parts * _whole(choice, product)


def _whole(choice: Division, product: Product) -> int:
    """Return how many blocks would compute a sum that is not divided into parts."""
    tile = choice.tile
    return product.batch * -(-product.rows // tile.rows) * -(-product.columns // tile.columns)


def with_ahead(choices: Iterable[Choice], product: Product) -> tuple[Choice, ...]:
    """Return the choices, and behind each the same with slices copied ahead.

    How much of the waiting that hides is not known on paper; whoever times them knows.
    """
    both = ((each, each._replace(ahead=True)) for each in choices)
    return tuple(each for pair in both for each in pair if not each.ahead or slices_of(each, product) > 1)


def slices_of(choice: Division, product: Product) -> int:
    """Return how many slices of the terms a block goes through."""
    return -(-product.terms // (choice.tile.depth * choice.parts))


def cycles(choice: Choice, product: Product, gpu: Gpu) -> float:
    """Return how many of the GPU's cycles the model gives a sum."""
    tile = choice.tile
    slices = slices_of(choice, product)
    shares = -(-blocks(choice, product) // gpu.processors)
    # Each product needs its share of loads from shared memory; more sums for each thread need fewer loads.
    effort = 1 + 1 / tile.own_rows + 1 / tile.own_columns
    products = tile.rows * tile.columns * slices * tile.depth * effort / min(gpu.products, tile.threads)
    return with_waiting(shares * products, slices, shares, tile.block, gpu) + adding(choice, product, gpu)


def with_waiting(busy: float, slices: int, shares: int, block: Block, gpu: Gpu) -> float:
    """Return the cycles of a multiprocessor that computes for ``busy`` cycles and waits for each slice.

    Of its ``shares`` blocks as many run at a time as its registers and its shared memory do for.
    """
    by_registers = gpu.registers // (block.threads * (block.sums + _OTHER_REGISTERS))
    together = max(1, min(_HIDDEN, by_registers, gpu.shared_bytes // block.shared_bytes))
    waiting = slices * gpu.cycles(_SLICE_S) * max(1.0, shares / together)
    return max(busy, waiting) + min(busy, waiting) / together


def adding(choice: Division, product: Product, gpu: Gpu) -> float:
    """Return the cycles of writing parts of sums, reading them again and writing the sums; 0 for one part."""
    if choice.parts == 1:
        return 0.0
    sums = _whole(choice, product) * choice.tile.rows * choice.tile.columns
    return gpu.cycles(_ADDING_S) + 4 * sums * (2 * choice.parts + 1) / (gpu.processors * _CACHED_BYTES)


def sensible(choice: Division, product: Product, gpu: Gpu) -> bool:
    """Return whether parts have something to do and make blocks that the GPU lacks."""
    if choice.parts == 1:
        return True
    few = _whole(choice, product) < gpu.processors
    enough = blocks(choice, product) <= _MOST_SHARE * gpu.processors
    return few and enough and -(-product.terms // choice.tile.depth) >= _LEAST_SLICES * choice.parts


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
