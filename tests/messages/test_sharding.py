"""The map of models to shards: balance, least movement, exceptions, and maps that are none."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages.sharding import Shard, ShardMap, first_map, hashed, map_fault

NAMES = [f"model-{number}" for number in range(400)]
WEIGHTS = st.lists(st.integers(0, 1_000), min_size=1, max_size=12).filter(any)


def shards(weights: list[int]) -> tuple[Shard, ...]:
    return tuple(Shard(f"tcp://host-{number}:7401", pages) for number, pages in enumerate(weights))


@given(WEIGHTS, st.integers(1, 1_000))
@settings(max_examples=40, deadline=None)
def test_a_new_shard_takes_models_and_no_other_does(weights: list[int], new: int) -> None:
    before = [hashed(name, shards(weights)) for name in NAMES]
    after = [hashed(name, shards([*weights, new])) for name in NAMES]
    assert all(b in (a, len(weights)) for a, b in zip(before, after, strict=True))


@given(WEIGHTS, st.data())
@settings(max_examples=40, deadline=None)
def test_more_weight_only_draws_models_to_its_shard(weights: list[int], data: st.DataObject) -> None:
    grown = data.draw(st.integers(0, len(weights) - 1))
    heavier = [each + 50 * (number == grown) for number, each in enumerate(weights)]
    before = [hashed(name, shards(weights)) for name in NAMES]
    after = [hashed(name, shards(heavier)) for name in NAMES]
    assert all(b in (a, grown) for a, b in zip(before, after, strict=True))
    # Seen from there, less weight only has models leave the shard that lost it.


@pytest.mark.parametrize("weights", [[1] * 10, [768, 768], [1, 2, 3, 4], [0, 5, 15]])
def test_models_are_divided_in_proportion_to_weight(weights: list[int]) -> None:
    names = [f"m{number}" for number in range(20_000)]
    found = [hashed(name, shards(weights)) for name in names]
    for number, weight in enumerate(weights):
        expected = len(names) * weight / sum(weights)
        assert abs(found.count(number) - expected) <= 4 * expected**0.5 + 1e-9


def test_what_hashing_says_never_changes() -> None:
    """Gateways, controllers and simulations of any release put a model in the same place."""
    found = [hashed(f"model-{number}", shards([1, 2, 3])) for number in range(12)]
    assert found == PLACES


PLACES = [2, 0, 2, 0, 1, 1, 2, 1, 0, 2, 1, 2]


@given(WEIGHTS, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 11), max_size=20))
@settings(max_examples=40, deadline=None)
def test_a_moved_model_is_where_it_was_moved_and_every_other_one_where_it_was(
    weights: list[int], moves: dict[str, int]
) -> None:
    moves = {name: at % len(weights) for name, at in moves.items()}
    before = ShardMap(3, shards(weights))
    after = before.moved(moves)
    assert after.version == 4
    assert map_fault(after) is None
    for name in NAMES:
        assert after.place(name) == moves.get(name, before.place(name))
    back = after.moved({name: before.place(name) for name in moves})
    assert not back.models


@pytest.mark.parametrize(
    ("shard_map", "says"),
    [
        (ShardMap(1, ()), "it has 0 shards"),
        (first_map([f"tcp://h:{number}" for number in range(65)]), "it has 65 shards; there may be 1 to 64"),
        (
            first_map(["tcp://a:1", "tcp://b:1", "tcp://a:1"]),
            "shards 0 and another have the address tcp://a:1",
        ),
        (first_map(["tcp://a:1", "tcp://b:1"], [0, 0]), "not 0 for all"),
        (first_map(["tcp://a:1", "tcp://b:1"], [-1, 2]), "0 or more"),
        (
            msgspec.structs.replace(first_map(["tcp://a:1", "tcp://b:1"]), models={"m": 2}),
            "model 'm' is in shard 2; there are 0 to 1",
        ),
    ],
)
def test_a_map_that_can_not_be_is_described(shard_map: ShardMap, says: str) -> None:
    assert says in (map_fault(shard_map) or "")
