"""Tiles of sums of products: large where there is much to reuse, small where blocks would be few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.plan import MOST_THREADS
from mainspring.compiler.tvm.tiles import (
    TILES,
    Choice,
    Product,
    blocks,
    choose,
    cycles,
    processors_of,
    ranked,
)

H100 = processors_of("sm_90")


def chosen(batch: int, rows: int, columns: int, terms: int, processors: int) -> Choice:
    return choose(Product(batch, rows, columns, terms), processors)


def test_a_large_product_takes_the_largest_tile() -> None:
    assert chosen(1, 16 * 56 * 56, 256, 64, H100) == Choice(TILES[0])
    assert chosen(1, 4096, 4096, 4096, H100) == Choice(TILES[0])


@pytest.mark.parametrize(
    ("rows", "columns", "terms"), [(49, 512, 4608), (196, 256, 2304), (49, 2048, 512), (16, 1000, 2048)]
)
def test_a_small_image_is_spread_over_the_multiprocessors(rows: int, columns: int, terms: int) -> None:
    product = Product(1, rows, columns, terms)
    few = blocks(Choice(TILES[0]), product)
    assert few < H100
    assert blocks(chosen(*product, H100), product) > 2 * few


def test_many_terms_of_few_sums_are_added_in_parts() -> None:
    product = Product(1, 49, 512, 4608)
    fastest = choose(product, H100)
    assert fastest.parts > 1
    whole = min(cycles(choice, product, H100) for choice in ranked(product, H100) if choice.parts == 1)
    assert cycles(fastest, product, H100) < whole / 3
    # A second kernel costs more than it saves of a sum with few terms.
    assert chosen(1, 49, 512, 64, H100).parts == 1


def test_sums_that_make_blocks_enough_are_not_divided() -> None:
    product = Product(1, 16 * 196, 256, 2304)
    for choice in ranked(product, H100):
        assert choice.parts == 1 or blocks(Choice(choice.tile), product) < H100


def test_a_smaller_gpu_takes_larger_tiles_of_the_same_sum() -> None:
    small, large = (chosen(1, 784, 512, 576, processors_of(arch)).tile for arch in ("sm_75", "sm_90"))
    assert small.rows * small.columns > large.rows * large.columns
    assert processors_of("sm_90a") == processors_of("sm_90")


def test_an_unknown_architecture_is_taken_for_an_h100_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert processors_of("sm_90") == H100
    assert not caplog.records
    assert processors_of("sm_77") == H100
    assert "a GPU of sm_77 has is not known; 132 are assumed" in caplog.text


@given(
    st.integers(1, 64),
    st.integers(1, 10**6),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.integers(1, 200),
)
def test_every_tile_can_be_launched(batch: int, rows: int, columns: int, terms: int, processors: int) -> None:
    product = Product(batch, rows, columns, terms)
    tile, parts = choose(product, processors)
    assert blocks(Choice(tile, parts), product) < 2**31
    assert parts * batch < 2**16
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
