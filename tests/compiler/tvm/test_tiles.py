"""Tiles of sums of products: large where there is much to reuse, small where blocks would be few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.plan import MOST_THREADS
from mainspring.compiler.tvm.tiles import TILES, Product, Tile, choose, cycles, processors_of, ranked

H100 = processors_of("sm_90")


def tile_of(batch: int, rows: int, columns: int, terms: int, processors: int) -> Tile:
    return choose(Product(batch, rows, columns, terms), processors).tile


def blocks(tile: Tile, batch: int, rows: int, columns: int) -> int:
    return batch * -(-rows // tile.rows) * -(-columns // tile.columns)


def test_a_large_product_takes_the_largest_tile() -> None:
    assert tile_of(1, 16 * 56 * 56, 256, 64, H100) == TILES[0]
    assert tile_of(1, 4096, 4096, 4096, H100) == TILES[0]


@pytest.mark.parametrize(
    ("rows", "columns", "terms"), [(49, 512, 4608), (196, 256, 2304), (49, 2048, 512), (16, 1000, 2048)]
)
def test_a_small_image_is_spread_over_the_multiprocessors(rows: int, columns: int, terms: int) -> None:
    few = blocks(TILES[0], 1, rows, columns)
    assert few < H100
    assert blocks(tile_of(1, rows, columns, terms, H100), 1, rows, columns) > 2 * few


def test_a_smaller_gpu_takes_larger_tiles_of_the_same_sum() -> None:
    small, large = (tile_of(1, 784, 512, 1152, processors_of(arch)) for arch in ("sm_75", "sm_90"))
    assert small.rows * small.columns > large.rows * large.columns
    assert processors_of("sm_90a") == processors_of("sm_90") == processors_of("sm_77")


def test_more_rows_make_larger_tiles() -> None:
    areas = [
        tile.rows * tile.columns for tile in (tile_of(1, 49 * size, 512, 4608, H100) for size in (1, 8, 64))
    ]
    assert areas[0] < areas[1] < areas[2]


@given(
    st.integers(1, 64),
    st.integers(1, 10**6),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.integers(1, 200),
)
def test_every_tile_can_be_launched(batch: int, rows: int, columns: int, terms: int, processors: int) -> None:
    tile = tile_of(batch, rows, columns, terms, processors)
    assert 32 <= tile.threads <= MOST_THREADS
    # Slices of both operands in floats, one row of the first padded, fit in static shared memory.
    assert 4 * (tile.rows * (tile.depth + 1) + tile.depth * tile.columns) <= 48 * 1024


def test_all_choices_can_be_listed_the_model_s_own_first() -> None:
    product = Product(1, 196, 256, 2304)
    choices = ranked(product, H100)
    assert choices[0] == choose(product, H100)
    assert len(set(choices)) == len(choices)
    assert {choice.tile for choice in choices} == set(TILES)
    times = [cycles(choice, product, H100) for choice in choices]
    assert times == sorted(times)
