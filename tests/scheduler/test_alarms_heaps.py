"""Heaps of objects: what comes out is what a sorted list would give, whatever goes in and out meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.timeline import NEVER_NS
from mainspring.scheduler.alarms import Entry, Keyed, Weighted, order, pop, push

KEYS = st.integers(-3, 3) | st.integers(-NEVER_NS, NEVER_NS)


def rank(entry: Entry) -> tuple[float, int]:
    if isinstance(entry, Keyed):
        return int(entry.key), int(entry.number)
    assert isinstance(entry, Weighted)
    return entry.key, int(entry.number)


@given(st.lists(st.tuples(KEYS, st.integers(0, 3), st.booleans())))
def test_the_lowest_key_comes_out_and_of_equal_ones_the_lowest_number(
    steps: list[tuple[int, int, bool]],
) -> None:
    """A step enters an entry, and may take one out."""
    heap: list[Entry] = []
    left: list[tuple[float, int]] = []
    for key, number, takes in steps:
        push(heap, Keyed(key, number))
        left = sorted([*left, (key, number)])
        if takes:
            assert rank(pop(heap)) == left.pop(0)
    assert [rank(pop(heap)) for _ in range(len(heap))] == left


@given(st.lists(st.tuples(KEYS, st.integers(0, 3))))
def test_a_list_in_any_order_becomes_a_heap(entries: list[tuple[int, int]]) -> None:
    heap: list[Entry] = [Keyed(key, number) for key, number in entries]
    order(heap)
    assert [rank(pop(heap)) for _ in range(len(heap))] == sorted(entries)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3))))
def test_keys_need_not_be_whole(entries: list[tuple[float, int]]) -> None:
    heap: list[Entry] = []
    for key, number in entries:
        push(heap, Weighted(key, number))
    assert [rank(pop(heap)) for _ in range(len(heap))] == sorted(entries)
