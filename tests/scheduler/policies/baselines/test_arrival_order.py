"""The queue by arrival against a plain sorted list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.requests import Request
from mainspring.scheduler.policies.baselines.arrival_order import BEHIND_NS, FifoQueue
from tests.cluster import made
from tests.scheduler.hand import spec

MODEL = Model(spec("m"), 1)


def request(id_: int, arrived_ns: int, rows: int = 1) -> Request:
    return made.request(id_, MODEL, rows, arrived_ns, arrived_ns + 100)


steps = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "behind"]), st.integers(0, 9), st.integers(1, 4)), max_size=40
)


@given(steps)
def test_it_is_a_list_sorted_by_rank_and_id(steps: list[tuple[str, int, int]]) -> None:
    queue, expected, count = FifoQueue(), list[tuple[int, int, Request]](), 0
    for what, number, rows in steps:
        if what == "add":
            count += 1
            added = request(count, number, rows)
            queue.add(added)
            expected.append((number, count, added))
        elif expected and what == "remove":
            queue.remove(expected.pop(number % len(expected))[2])
        elif expected and expected[0][0] < BEHIND_NS:
            queue.put_behind()
            rank, id_, first = expected.pop(0)
            expected.append((rank + BEHIND_NS, id_, first))
        expected.sort(key=lambda entry: entry[:2])
        in_order = [entry[2] for entry in expected]
        assert len(queue) == len(expected)
        assert queue.rows == sum(each.rows for each in in_order)
        if expected:
            assert queue.head is in_order[0]
            assert queue.head_rank_ns == expected[0][0]
            for limit in range(1, 9):
                taken = queue.first(limit)
                assert taken == in_order[: len(taken)]
                assert len(taken) == 1 or sum(each.rows for each in taken) <= limit
                if len(taken) < len(in_order):
                    assert sum(each.rows for each in in_order[: len(taken) + 1]) > limit
                if queue.rows >= limit:
                    filled = next(
                        i for i in range(len(in_order)) if sum(e.rows for e in in_order[: i + 1]) >= limit
                    )
                    assert queue.filled_ns(limit) == expected[filled][0]


def test_what_is_not_queued_is_refused() -> None:
    queue = FifoQueue()
    queue.add(request(1, 5))
    with pytest.raises(KeyError):
        queue.remove(request(2, 5))
    queue.add(request(3, 6, rows=3))
    with pytest.raises(ValueError, match="4 rows are queued, too few by 1"):
        queue.filled_ns(5)
