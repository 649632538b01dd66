"""Labels are bounded and no counter ever goes down, whoever is busy when."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.telemetry.bounded import LEAD, OTHER, RANK_NS, BoundedLabels, key_labels, model_key
from tests.controller.peers import spec

NAMES = st.sampled_from([f"m{number}" for number in range(8)] + [OTHER])


class Box:
    """A counter that can be counted up."""

    def __init__(self) -> None:
        self.value = 0


def labels(limit: int) -> BoundedLabels[Box]:
    return BoundedLabels(limit, Box)


def count(bounded: BoundedLabels[Box], name: str, times: int = 1) -> None:
    bounded.counters(name).value += times


def shown(bounded: BoundedLabels[Box]) -> dict[str, int]:
    return {name: box.value for name, box in bounded.shown()}


@given(
    limit=st.integers(0, 4),
    rounds=st.lists(st.lists(st.tuples(NAMES, st.integers(1, 50)), max_size=12), max_size=12),
    gone=st.lists(st.integers(0, 11), max_size=3),
)
def test_bounded_monotone_and_nothing_lost(
    limit: int, rounds: list[list[tuple[str, int]]], gone: list[int]
) -> None:
    bounded = labels(limit)
    highest: Counter[str] = Counter()
    counted = 0
    for now_ns, events in enumerate(rounds):
        activity: Counter[str] = Counter()
        for name, times in events:
            count(bounded, name, times)
            activity[name] += times
            counted += times
        seen = shown(bounded)
        assert len(seen) <= limit + 1
        assert len(seen) == len(bounded.shown()), "a label is shown once"
        for name, value in seen.items():
            assert value >= highest[name], f"{name} went down"
            highest[name] = value
        bounded.rank(now_ns, activity.items())
        known = {name: box.value for name, box in bounded._known.items()}
        assert sum(known.values()) + bounded.other.value == counted, "each is counted in one place"
        if now_ns in gone:
            for name in list(seen)[:1]:
                counted -= known.get(name, 0)
                bounded.forget(name)
                highest.pop(name, None) if name != OTHER else None


def test_the_first_names_have_labels_at_once_and_the_rest_share_one() -> None:
    bounded = labels(2)
    for name in ("a", "b", "c", "d", "c"):
        count(bounded, name)
    assert shown(bounded) == {"a": 1, "b": 1, OTHER: 3}


def test_a_busier_name_takes_the_place_of_the_idlest_and_that_one_goes_on_where_it_was() -> None:
    bounded = labels(2)
    count(bounded, "a", 10)
    count(bounded, "b", 30)
    count(bounded, "c", 100)
    bounded.rank(0, [("a", 10), ("b", 30), ("c", 100)])
    assert shown(bounded) == {"b": 30, "c": 0, OTHER: 100}, "what was counted stays where it was counted"
    count(bounded, "a", 5)
    count(bounded, "c", 5)
    assert shown(bounded) == {"b": 30, "c": 5, OTHER: 105}
    bounded.rank(1, [("a", 1_000)])
    assert shown(bounded)["a"] == 10
    count(bounded, "a")
    assert shown(bounded)["a"] == 11


def test_names_that_are_about_as_busy_do_not_take_turns() -> None:
    bounded = labels(1)
    count(bounded, "a")
    for now_ns, recent in enumerate(((10, 10 * LEAD), (15, 20 * LEAD))):
        bounded.rank(now_ns, zip("ab", recent, strict=True))
        assert set(shown(bounded)) == {"a", OTHER}
    bounded.rank(2, [("b", 10 * LEAD + 1)])
    assert set(shown(bounded)) == {"b", OTHER}


def test_a_name_that_is_called_like_the_rest_is_counted_with_it() -> None:
    bounded = labels(3)
    count(bounded, OTHER, 4)
    bounded.rank(0, [(OTHER, 1_000)])
    count(bounded, OTHER)
    assert bounded.shown() == [(OTHER, bounded.other)]
    assert bounded.other.value == 5


def test_versions_of_a_model_are_counted_apart_and_replaced_weights_are_not() -> None:
    first = msgspec.structs.replace(spec("n:1"), served_as="a model", version=1)
    again = msgspec.structs.replace(first, name="n:1b", weights_hash="other")
    second = msgspec.structs.replace(first, name="n:2", version=2)
    assert model_key(first) == model_key(again) != model_key(second)
    assert key_labels(model_key(second)) == ("a model", "2")
    called_other = msgspec.structs.replace(first, served_as=OTHER)
    assert key_labels(model_key(called_other)) == key_labels(OTHER) == (OTHER, "")


def test_a_ranking_is_due_only_now_and_then() -> None:
    bounded = labels(1)
    assert bounded.due(0)
    bounded.rank(0, [])
    assert not bounded.due(RANK_NS - 1)
    assert bounded.due(RANK_NS)


def test_names_are_shown_with_zeros_before_anything_is_counted_and_give_way_to_those_that_are() -> None:
    bounded = labels(3)
    count(bounded, "busy")
    bounded.offer(["a", OTHER, "busy", "b", "c"])
    bounded.offer(["c", "d"])
    assert shown(bounded) == {"a": 0, "b": 0, "busy": 1, OTHER: 0}
    count(bounded, "a")
    count(bounded, "new", 2)
    assert shown(bounded) == {"a": 1, "busy": 1, "new": 2, OTHER: 0}
    count(bounded, "late", 3)
    assert shown(bounded) == {"a": 1, "busy": 1, "new": 2, OTHER: 3}
    assert bounded.offered == []


@pytest.mark.parametrize("limit", [4, 40])
def test_one_ranking_changes_a_part_of_the_labels(limit: int) -> None:
    bounded = labels(limit)
    for number in range(limit):
        count(bounded, f"old{number}")
    before = set(shown(bounded))
    bounded.rank(0, [(f"new{number}", 100) for number in range(limit)])
    assert 0 < len(set(shown(bounded)) - before) <= max(1, limit // 4)
