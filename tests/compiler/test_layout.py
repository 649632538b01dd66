from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.manifest import ALIGNMENT_BYTES
from mainspring.compiler.program.layout import lay_out
from mainspring.messages.model import PAGE_BYTES

SIZES = st.lists(
    st.one_of(
        st.integers(0, 300_000),
        st.integers(PAGE_BYTES // 4, PAGE_BYTES + 100),
        st.integers(PAGE_BYTES, 4 * PAGE_BYTES),
    ),
    max_size=60,
)


@given(SIZES)
def test_small_tensors_stay_in_a_page_and_all_in_their_extent(sizes: list[int]) -> None:
    layout = lay_out(sizes)
    begins = [sum(layout.extents[:index]) * PAGE_BYTES for index in range(len(layout.extents))]
    for size, place in zip(sizes, layout.places, strict=True):
        begin = begins[place.extent]
        assert begin <= place.offset
        assert place.offset + size <= begin + layout.extents[place.extent] * PAGE_BYTES
        assert place.offset % ALIGNMENT_BYTES == 0
        if 0 < size < PAGE_BYTES:
            assert place.offset // PAGE_BYTES == (place.offset + size - 1) // PAGE_BYTES


@given(SIZES)
def test_no_two_tensors_overlap_and_the_file_ends_with_the_last_one(sizes: list[int]) -> None:
    layout = lay_out(sizes)
    ranges = sorted(
        (place.offset, place.offset + max(size, 1)) for size, place in zip(sizes, layout.places, strict=True)
    )
    for (_, end), (begin, _) in pairwise(ranges):
        assert end <= begin
    pages = sum(layout.extents)
    assert (pages - 1) * PAGE_BYTES < layout.total_bytes <= pages * PAGE_BYTES
    assert layout.total_bytes >= max((end for _, end in ranges), default=0) - 1


@given(SIZES)
def test_pages_are_few_and_extents_no_longer_than_their_tensor(sizes: list[int]) -> None:
    layout = lay_out(sizes)
    large = [-(-size // PAGE_BYTES) for size in sizes if size > PAGE_BYTES]
    assert sorted(pages for pages in layout.extents if pages > 1) == sorted(large)
    # Best fit never leaves two pages half empty: their tensors would share one.
    aligned = sum(max(size, 1) + ALIGNMENT_BYTES for size in sizes)
    assert sum(layout.extents) <= 2 * (aligned // PAGE_BYTES) + 1 + len(large)


def test_a_large_tensor_takes_adjacent_pages_and_shares_the_last() -> None:
    layout = lay_out([100, 2 * PAGE_BYTES + 4096, PAGE_BYTES - 8192])
    assert layout.extents == (3,)
    assert layout.places[1].offset == 0
    assert {place.extent for place in layout.places} == {0}


def test_the_emptiest_page_is_last_so_that_the_file_is_short() -> None:
    layout = lay_out([1000, PAGE_BYTES - 100, PAGE_BYTES - 64])
    assert layout.extents == (1, 1, 1)
    assert layout.places[0].offset == 2 * PAGE_BYTES
    assert layout.total_bytes == 2 * PAGE_BYTES + 1024


def test_a_model_without_weights_takes_one_page() -> None:
    assert lay_out([]).extents == (1,)
    assert lay_out([]).total_bytes > 0


def test_equal_sizes_give_equal_layouts() -> None:
    sizes = [5000, 70, 5000, 3 * PAGE_BYTES, 12]
    assert lay_out(sizes) == lay_out(list(sizes))
