"""Tiles of sums of products: large where there is much to reuse, small where blocks would be few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mainspring.compiler.artifact.plan import MOST_THREADS
from mainspring.compiler.artifact.target import KNOWN, Gpu, known_gpu
from mainspring.compiler.tvm.tiles import TILES, Choice, Product, blocks, choose, cycles, ranked, with_ahead

H100 = known_gpu("sm_90")


def chosen(batch: int, rows: int, columns: int, terms: int, gpu: Gpu) -> Choice:
    return choose(Product(batch, rows, columns, terms), gpu)


def test_a_large_product_takes_the_largest_tile() -> None:
    assert chosen(1, 16 * 56 * 56, 256, 64, H100) == Choice(TILES[0])
    assert chosen(1, 4096, 4096, 4096, H100) == Choice(TILES[0])


@pytest.mark.parametrize(
    ("rows", "columns", "terms"), [(49, 512, 4608), (196, 256, 2304), (49, 2048, 512), (16, 1000, 2048)]
)
def test_a_small_image_is_spread_over_the_multiprocessors(rows: int, columns: int, terms: int) -> None:
    product = Product(1, rows, columns, terms)
    few = blocks(Choice(TILES[0]), product)
    assert few < H100.processors
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
        assert choice.parts == 1 or blocks(Choice(choice.tile), product) < H100.processors


def test_a_smaller_gpu_takes_larger_tiles_of_the_same_sum() -> None:
    small, large = (chosen(1, 784, 512, 576, known_gpu(arch)).tile for arch in ("sm_75", "sm_90"))
    assert small.rows * small.columns > large.rows * large.columns


def test_blocks_hide_each_other_s_waits_where_shared_memory_and_registers_do_for_several() -> None:
    product, choice = Product(1, 16 * 784, 512, 576), Choice(TILES[0])
    least = structs.replace(H100, shared_bytes=choice.tile.block.shared_bytes)
    few = structs.replace(H100, registers=H100.registers // 4)
    for crowded in (least, few):
        assert cycles(choice, product, crowded) > 1.1 * cycles(choice, product, H100)


def test_a_higher_clock_waits_for_more_cycles_and_adds_parts_in_as_much_time() -> None:
    product, choice = Product(1, 49, 512, 4608), Choice(TILES[-1])
    slow = structs.replace(H100, clock_mhz=H100.clock_mhz // 2)
    assert cycles(choice, product, H100) > 1.5 * cycles(choice, product, slow)


@given(
    st.integers(1, 64),
    st.integers(1, 10**6),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.sampled_from(sorted(KNOWN)),
    st.integers(1, 200),
)
def test_every_tile_can_be_launched(
    batch: int, rows: int, columns: int, terms: int, arch: str, processors: int
) -> None:
    product = Product(batch, rows, columns, terms)
    tile, parts, ahead = choose(product, structs.replace(known_gpu(arch), processors=processors))
    assert not ahead, "what only a GPU can tell"
    assert blocks(Choice(tile, parts), product) < 2**31
    assert parts * batch < 2**16
    assert 32 <= tile.threads <= MOST_THREADS
    # Two slices of both operands in floats, rows of the first padded, fit in static shared memory.
    assert 2 * 4 * (tile.rows * (tile.depth + 4) + tile.depth * tile.columns) <= 48 * 1024


def test_all_choices_can_be_listed_the_model_s_own_first() -> None:
    product = Product(1, 196, 256, 2304)
    choices = ranked(product, H100)
    assert choices[0] == choose(product, H100)
    assert len(set(choices)) == len(choices)
    assert {choice.tile for choice in choices} == set(TILES)
    times = [cycles(choice, product, H100) for choice in choices]
    assert times == sorted(times)


def test_choices_with_slices_copied_ahead_follow_those_without() -> None:
    product = Product(1, 196, 256, 2304)
    choices = with_ahead(ranked(product, H100), product)
    assert choices[::2] == ranked(product, H100)
    assert choices[1::2] == tuple(each._replace(ahead=True) for each in choices[::2])
    few = product._replace(terms=TILES[0].depth)
    assert with_ahead(ranked(few, H100), few) == ranked(few, H100), "there is no slice behind the first"
