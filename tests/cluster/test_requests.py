from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.requests import TRANSITIONS, DeadlineQueue, Place, Request
from mainspring.cluster.state import Cluster
from mainspring.messages.model import ModelSpec
from tests.cluster import made
from tests.cluster.test_placements import documented

MODEL = Model(ModelSpec("m", "m", "g", (1, 8), 0, (1,), (), (), {}), 1)
REQUESTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=20)


def filled(requests: list[tuple[int, int]]) -> tuple[DeadlineQueue, list[Request]]:
    queue = DeadlineQueue()
    all_of_them = [made.request(id_, MODEL, rows, 0, due) for id_, (due, rows) in enumerate(requests)]
    for request in all_of_them:
        queue.add(request)
    return queue, sorted(all_of_them, key=lambda request: (request.due_ns or 0, request.id))


@given(REQUESTS, st.integers(0, 21), st.integers(1, 6))
def test_the_queue_answers_as_a_sorted_list_would(
    requests: list[tuple[int, int]], due_ns: int, size: int
) -> None:
    queue, model = filled(requests)
    assert list(queue) == model
    assert queue.rows == sum(request.rows for request in model)
    feasible = [i for i, r in enumerate(model) if (r.due_ns or 0) >= due_ns and r.rows <= size]
    first = queue.first_feasible(due_ns, size)
    assert first == (feasible[0] if feasible else len(model))
    assert queue.rows_due_from(due_ns) == sum(r.rows for r in model if (r.due_ns or 0) >= due_ns)
    assert queue.rows_from(first, size) == min(size, sum(r.rows for r in model[first:]))
    for index, request in enumerate(model):
        assert queue.rows_before(request) == sum(r.rows for r in model[:index])
    stranger = made.request(len(model), MODEL, 1, 0, due_ns)
    assert queue.rows_before(stranger) == sum(r.rows for r in model if (r.due_ns or 0) <= due_ns)


@given(REQUESTS, st.integers(1, 8))
def test_a_batch_never_holds_more_rows_than_its_size(requests: list[tuple[int, int]], size: int) -> None:
    queue, model = filled(requests)
    taken = queue.fill(0, size)
    assert sum(request.rows for request in taken) <= size
    assert taken == [request for request in model if request in taken], "in the order of deadlines"
    if all(request.rows == 1 for request in model):
        assert taken == model[:size]


@given(REQUESTS, st.data())
def test_several_requests_are_removed_as_one_after_the_other(
    requests: list[tuple[int, int]], data: st.DataObject
) -> None:
    for unit_rows in (True, False):
        queue, model = filled([(due, 1 if unit_rows else rows) for due, rows in requests])
        while model:
            start = data.draw(st.integers(0, len(model) - 1))
            step = data.draw(st.integers(1, 3))
            taken = model[start : start + 4 * step : step]
            queue.remove_all(taken)
            model = [request for request in model if request not in taken]
            assert list(queue) == model
            assert queue.dues == [request.due_ns for request in model]
            assert queue.rows == sum(request.rows for request in model)
            with pytest.raises(KeyError):
                queue.remove_all(taken)


@given(REQUESTS, st.data())
def test_requests_can_be_removed_from_anywhere(requests: list[tuple[int, int]], data: st.DataObject) -> None:
    queue, model = filled(requests)
    while model:
        request = data.draw(st.sampled_from(model))
        queue.remove(request)
        model.remove(request)
        assert list(queue) == model
        assert queue.rows == sum(left.rows for left in model)
        with pytest.raises(KeyError):
            queue.remove(request)


@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize(
    ("enter", "allowed"),
    [
        (Cluster.enqueue, [place for place in Place if Place.QUEUED in TRANSITIONS[place]]),
        (Cluster.close, [place for place in Place if Place.GONE in TRANSITIONS[place]]),
        (Cluster.dequeue, [Place.QUEUED]),
    ],
)
def test_a_request_enters_only_a_place_that_may_follow_its_own(
    place: Place, enter: Callable[[Cluster, Request], None], allowed: list[Place]
) -> None:
    cluster, request = Cluster(), made.request(1, Model(MODEL.spec, 1), 1, 0, 5)
    cluster.enqueue(request)
    request.place = place
    if place in allowed:
        enter(cluster, request)
    else:
        with pytest.raises(AssertionError, match=r"request 1 \(m"):
            enter(cluster, request)
        assert request.place is place


def test_the_documentation_has_the_table_of_places() -> None:
    told = documented("Places of a request")
    assert told == {place.value: tuple(each.value for each in TRANSITIONS[place]) for place in TRANSITIONS}
