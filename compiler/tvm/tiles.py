"""How large the tiles of a sum of products are on a GPU: a model of its time, not a measurement. Pure.

Large tiles reuse what they fetch; small ones make enough blocks for every multiprocessor, and so do parts of
the terms, at the price of a second kernel that adds them. For each choice the model takes the larger of two
times: that of the multiplications, with every multiprocessor computing its share of the blocks, and that of
one block going through its slices, each of which waits for memory once.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

_LOGGER = logging.getLogger(__name__)
_PROCESSORS = {
    "sm_70": 80,
    "sm_75": 40,
    "sm_80": 108,
    "sm_86": 72,
    "sm_89": 58,
    "sm_90": 132,
    "sm_100": 148,
    "sm_120": 170,
}
"""Multiprocessors of V100, T4, A100, A10, L4, H100, B200 and RTX 5090; of others as many as an H100 has."""
_PRODUCTS = 128
"""Multiplications that one multiprocessor does in a cycle."""
_SLICE_CYCLES = 500
"""Cycles of fetching a slice and two barriers, if nothing hides them."""
_HIDDEN = 4
"""Blocks on one multiprocessor hide each other's waits, up to about this number."""
_ADDING_CYCLES = 3000
"""Cycles of a second kernel that adds parts of sums, if it had nothing to read: 1.7 us on an H100."""
_CACHED_BYTES = 24
"""Bytes that one multiprocessor reads from or writes to the second-level cache in a cycle."""


class Tile(NamedTuple):
    """What one block computes: ``rows`` by ``columns`` sums, ``depth`` terms at a time."""

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


class Choice(NamedTuple):
    """How a sum of products is divided."""

    tile: Tile
    parts: int = 1
    """Parts of the terms that are summed by blocks of their own, and then added."""


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


def processors_of(arch: str) -> int:
    """Return the multiprocessors that a server's GPU of an architecture such as ``sm_90`` has.

    Of an unknown architecture those of an H100 are assumed, which the log says.
    """
    known = _PROCESSORS.get(arch.rstrip("af"))
    if known is None:
        known = _PROCESSORS["sm_90"]
        _LOGGER.warning("how many multiprocessors a GPU of %s has is not known; %d are assumed", arch, known)
    return known


def ranked(product: Product, processors: int) -> tuple[Choice, ...]:
    """Return every sensible choice for a sum, the one that the model finds fastest first."""
    choices = [
        Choice(tile, parts)
        for tile in TILES
        for parts in PARTS
        if _sensible(tile, parts, product, processors)
    ]
    return tuple(sorted(choices, key=lambda choice: cycles(choice, product, processors)))


def choose(product: Product, processors: int) -> Choice:
    """Return the choice that the model finds fastest for a sum; of equals the one with the largest tile."""
    return ranked(product, processors)[0]


def blocks(choice: Choice, product: Product) -> int:
    """Return how many blocks compute a sum or its parts."""
    tile = choice.tile
    return choice.parts * product.batch * -(-product.rows // tile.rows) * -(-product.columns // tile.columns)


def cycles(choice: Choice, product: Product, processors: int) -> float:
    """Return how many of the GPU's cycles the model gives a sum."""
    tile, parts = choice
    slices = -(-product.terms // (tile.depth * parts))
    shares = -(-blocks(choice, product) // processors)
    # Each product needs its share of loads from shared memory; more sums for each thread need fewer loads.
    effort = 1 + 1 / tile.own_rows + 1 / tile.own_columns
    products = tile.rows * tile.columns * slices * tile.depth * effort / min(_PRODUCTS, tile.threads)
    computing = with_waiting(shares * products, slices, shares)
    return computing + (_adding(choice, product, processors) if parts > 1 else 0.0)


def with_waiting(busy: float, slices: int, shares: int) -> float:
    """Return the cycles of a multiprocessor that computes for ``busy`` cycles and waits for each slice."""
    waiting = slices * _SLICE_CYCLES * max(1.0, shares / _HIDDEN)
    return max(busy, waiting) + min(busy, waiting) / _HIDDEN


def _adding(choice: Choice, product: Product, processors: int) -> float:
    """Return the cycles of writing parts of sums, reading them again and writing the sums."""
    tile, parts = choice
    sums = blocks(choice, product) // parts * tile.rows * tile.columns
    return _ADDING_CYCLES + 4 * sums * (2 * parts + 1) / (processors * _CACHED_BYTES)


def _sensible(tile: Tile, parts: int, product: Product, processors: int) -> bool:
    """Whether parts have something to do and make blocks that the GPU lacks."""
    if parts == 1:
        return True
    few = blocks(Choice(tile), product) < processors
    enough = blocks(Choice(tile, parts), product) <= _MOST_SHARE * processors
    return few and enough and -(-product.terms // tile.depth) >= _LEAST_SLICES * parts
