from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.workers import PageTable


@given(
    st.integers(1, 40), st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), max_size=12), st.data()
)
def test_extents_are_adjacent_and_pages_have_one_owner(
    size: int, models: list[list[int]], data: st.DataObject
) -> None:
    table = PageTable(size)
    owned: dict[str, tuple[int, ...]] = {}
    for number, extents in enumerate(models):
        drops: bool = data.draw(st.booleans())
        if owned and drops:
            gone = data.draw(st.sampled_from(sorted(owned)))
            table.give_back(gone, owned.pop(gone))
        pages = table.place(extents)
        if pages is None:
            continue
        assert len(pages) == len(set(pages)) == sum(extents)
        start = 0
        for extent in extents:
            run = pages[start : start + extent]
            assert all(b == a + 1 for a, b in pairwise(run)), f"extent {extent} at {run}"
            start += extent
        table.take(f"m{number}", pages)
        owned[f"m{number}"] = pages
        table.validate(owned)
    assert table.free == size - sum(map(len, owned.values()))


@given(st.integers(1, 20), st.sets(st.integers(0, 19)))
def test_single_pages_are_found_whenever_there_are_enough(size: int, taken: set[int]) -> None:
    table = PageTable(size)
    table.take("other", sorted(page for page in taken if page < size))
    free = table.free
    assert table.place((1,) * free) is not None if free else True
    assert table.place((1,) * (free + 1)) is None


def test_pages_of_victims_are_used_only_when_the_free_ones_run_out() -> None:
    table = PageTable(4)
    table.take("victim", (0, 1))
    assert table.place((1, 1), also_free=(0, 1)) == (2, 3)
    assert table.place((1, 1, 1), also_free=(0, 1)) == (2, 3, 0)


def test_a_long_extent_goes_where_it_breaks_least() -> None:
    table = PageTable(10)
    table.take("wall", (3,))
    assert table.place((3,)) == (0, 1, 2)
    assert table.place((4,)) == (6, 7, 8, 9)
    assert table.place((7,)) is None


def test_wrong_owners_are_refused() -> None:
    table = PageTable(2)
    table.take("a", (0,))
    with pytest.raises(ValueError, match="page 0 is not free for b"):
        table.take("b", (0,))
    with pytest.raises(ValueError, match="owned by a, not by b"):
        table.give_back("b", (0,))
    with pytest.raises(ValueError, match="page 2 is not free"):
        table.take("b", (2,))
