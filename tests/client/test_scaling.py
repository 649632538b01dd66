"""Which of several controllers gets a worker more, or one less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.scaling import divided, shares
from mainspring.messages.scaling import KindStatus
from mainspring.messages.sharding import ShardStatus
from mainspring.messages.status import ClusterStatus


def test_new_workers_go_where_there_are_fewest_for_the_weight() -> None:
    assert divided(7, {0: 2, 1: 2}, {0: 1, 1: 1}) == {0: 4, 1: 3}
    assert divided(9, {0: 3, 1: 3}, {0: 200, 1: 100}) == {0: 6, 1: 3}
    assert divided(6, {0: 4, 1: 1}, {0: 1, 1: 1}) == {0: 4, 1: 2}, "what was moved stays"
    assert divided(6, {0: 1, 1: 1}, {0: 1, 1: 0}) == {0: 5, 1: 1}, "none goes to a shard without weight"


def test_workers_leave_where_there_are_most_for_the_weight_and_the_last_of_a_shard_stays() -> None:
    assert divided(4, {0: 4, 1: 4}, {0: 3, 1: 1}) == {0: 3, 1: 1}
    assert divided(3, {0: 1, 1: 1, 2: 9}, {0: 1, 1: 1, 2: 100}) == {0: 1, 1: 1, 2: 1}
    assert divided(0, {0: 1, 1: 3}, {0: 1, 1: 1}) == {0: 0, 1: 0}


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 500)), min_size=1, max_size=6),
)
def test_the_counts_add_up_and_nobody_gives_while_others_get(
    count: int, shards: list[tuple[int, int]]
) -> None:
    known = {number: workers for number, (workers, _) in enumerate(shards)}
    found = divided(count, known, {number: weight for number, (_, weight) in enumerate(shards)})
    assert sum(found.values()) == count
    grows = [found[number] > known[number] for number in known]
    shrinks = [found[number] < known[number] for number in known]
    assert not (any(grows) and any(shrinks))
    if count >= len([number for number in known if known[number]]):
        assert all(found[number] for number in known if known[number])


def test_shards_that_have_the_kind_are_asked_those_that_shrink_first() -> None:
    def shard(number: int, *kinds: KindStatus) -> ShardStatus:
        return ShardStatus(number, f"tcp://{number}", 10, up=True, kinds=kinds)

    def kind(name: str, wanted: int) -> KindStatus:
        return KindStatus(name, "launcher", 9, wanted, wanted)

    status = ClusterStatus(
        *("mainspring", (), (), 0, {}),
        shards=(shard(0, kind("a", 2)), shard(1, kind("a", 4), kind("b", 1)), shard(2, kind("b", 1))),
    )
    assert list(shares(status, "a", 4).items()) == [(1, 2), (0, 2)]
    assert shares(status, "b", 4) == {1: 2, 2: 2}
    assert shares(status, "c", 4) == {}
