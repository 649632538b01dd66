"""The batches of `batching`, against a search of all sizes and all first requests."""

import math

from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.requests import DeadlineQueue
from mainspring.scheduler.policies.batching import (
    densest_batch,
    fitting,
    largest_batch,
    largest_index,
    soonest_batch,
)
from tests.cluster import made
from tests.scheduler.hand import MS, spec

SIZES = (1, 2, 4)
waits = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=9)
"""(due after ms, rows)"""
durations = st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 12))
instants = st.tuples(st.integers(0, 12), st.integers(0, 12), st.tuples(*[st.integers(0, 4)] * 3))
"""(begin, inputs, transfers) in ms"""


def model_of(requests: list[tuple[int, int]]) -> Model:
    model = Model(spec("m"), 1)
    for id_, (due_ms, rows) in enumerate(requests, 1):
        model.queue.add(made.request(id_, model, rows, 0, due_ms * MS))
    return model


def times_of(given_ms: tuple[int, int, int], transfers_ms: tuple[int, ...]) -> InferTimes:
    a, b, c = given_ms
    times = InferTimes(SIZES, [a * MS, (a + b) * MS, (a + b + c) * MS])
    times.transfer_ns = [each * MS for each in transfers_ms]
    return times


def rows_by_hand(
    queue: DeadlineQueue, times: InferTimes, index: int, begin_ns: int, inputs_ns: int
) -> tuple[int, int]:
    """Return (first request's index, rows) of a size, no rows if it is in time for none."""
    size = SIZES[index]
    end_ns = max(begin_ns, inputs_ns + times.transfer_ns[index]) + times.ns[index]
    requests = list(queue)
    fits = [i for i, each in enumerate(requests) if queue.dues[i] >= end_ns and each.rows <= size]
    if not fits:
        return len(requests), 0
    return fits[0], min(size, sum(each.rows for each in requests[fits[0] :]))


@given(waits, durations, instants)
def test_a_size_holds_the_rows_from_the_first_request_in_time_that_no_smaller_size_holds(
    requests: list[tuple[int, int]], given_ms: tuple[int, int, int], at: tuple[int, int, tuple[int, ...]]
) -> None:
    queue, times = model_of(requests).queue, times_of(given_ms, at[2])
    begin_ns, inputs_ns = at[0] * MS, at[1] * MS
    for index, size in enumerate(SIZES):
        first, rows = rows_by_hand(queue, times, index, begin_ns, inputs_ns)
        if index and rows <= SIZES[index - 1]:
            rows = 0
        assert fitting(queue, times, index, begin_ns, inputs_ns) == (first, rows)
        assert rows <= size


@given(waits, durations, instants, st.booleans())
def test_the_largest_batch_is_filled_or_needed_or_pays_for_its_empty_rows(
    requests: list[tuple[int, int]],
    given_ms: tuple[int, int, int],
    at: tuple[int, int, tuple[int, ...]],
    pads: bool,
) -> None:
    model, times, begin_ns, inputs_ns = model_of(requests), times_of(given_ms, at[2]), at[0] * MS, at[1] * MS
    queue = model.queue
    expected = None
    for index in range(largest_index(model), -1, -1):
        first, rows = rows_by_hand(queue, times, index, begin_ns, inputs_ns)
        below = SIZES[index - 1] if index else 0
        if not rows or rows <= below:
            continue
        saves = index == 0 or times.ns[index] < times.ns[index - 1] + times.for_rows(max(1, rows - below))
        if rows == SIZES[index] or queue.rows_at(first) > below or (pads and saves):
            expected = index, first, rows
            break
    top = largest_index(model)
    assert largest_batch(queue, times, top, begin_ns, inputs_ns, pads) == expected


@given(waits, durations, instants)
def test_a_batch_that_is_to_begin_at_a_request_is_in_time_for_it(
    requests: list[tuple[int, int]], given_ms: tuple[int, int, int], at: tuple[int, int, tuple[int, ...]]
) -> None:
    model, times = model_of(requests), times_of(given_ms, at[2])
    queue = model.queue
    top = largest_index(model)
    for head in range(len(queue)):
        found = largest_batch(queue, times, top, at[0] * MS, at[1] * MS, True, head)
        if found is not None:
            begin_ns = max(at[0] * MS, at[1] * MS + times.transfer_ns[found[0]])
            assert found[1] == head
            assert queue.dues[head] >= begin_ns + times.ns[found[0]]
            assert queue.fill(head, SIZES[found[0]])


@given(waits, durations, instants, st.booleans())
def test_no_batch_serves_more_requests_for_its_time_than_the_densest(
    requests: list[tuple[int, int]],
    given_ms: tuple[int, int, int],
    at: tuple[int, int, tuple[int, ...]],
    pads: bool,
) -> None:
    model, times, begin_ns, inputs_ns = model_of(requests), times_of(given_ms, at[2]), at[0] * MS, at[1] * MS
    queue = model.queue
    found = densest_batch(queue, times, largest_index(model), begin_ns, inputs_ns, pads)
    best = 0.0
    for index in range(len(SIZES)):
        first, rows = rows_by_hand(queue, times, index, begin_ns, inputs_ns)
        below = SIZES[index - 1] if index else 0
        if rows > below and (pads or rows == SIZES[index] or queue.rows_at(first) > below):
            best = max(best, len(queue.fill(first, SIZES[index])) / times.ns[index])
    if found is None:
        assert best == 0.0
    else:
        index, first, count = found
        assert count == len(queue.fill(first, SIZES[index]))
        assert count / times.ns[index] == best


@given(waits, durations, instants, st.booleans(), st.floats(0, 30 * MS))
def test_no_batch_ranks_before_the_soonest(
    requests: list[tuple[int, int]],
    given_ms: tuple[int, int, int],
    at: tuple[int, int, tuple[int, ...]],
    pads: bool,
    scale_ns: float,
) -> None:
    model, times, begin_ns, inputs_ns = model_of(requests), times_of(given_ms, at[2]), at[0] * MS, at[1] * MS
    queue = model.queue
    found = soonest_batch(queue, times, largest_index(model), begin_ns, inputs_ns, pads, scale_ns)
    ranks, some = [], False
    for index in range(len(SIZES)):
        first, rows = rows_by_hand(queue, times, index, begin_ns, inputs_ns)
        below = SIZES[index - 1] if index else 0
        if rows > below and (pads or rows == SIZES[index] or queue.rows_at(first) > below):
            some = True
            filled, ns = queue.fill(first, SIZES[index]), times.ns[index]
            count = len(filled)
            if parts_ns([each.rows for each in filled], times, index) < 0.9 * ns:
                continue
            ranks.append(
                (queue.dues[first] - ns - scale_ns * math.log(count / ns), -index, (index, first, count))
            )
    assert found == (min(ranks)[2] if ranks else None)
    assert bool(found) == some


def parts_ns(rows: list[int], times: InferTimes, index: int) -> float:
    """Return the least time of the requests of a batch in batches of one smaller size, each with as many
    requests as that holds of the largest."""
    least = math.inf
    for smaller, size in enumerate(SIZES[:index]):
        if size >= max(rows):
            together = size // max(rows)
            least = min(least, times.ns[smaller] * math.ceil(len(rows) / together))
    return least


def test_a_batch_that_takes_longer_than_its_parts_is_not_formed() -> None:
    """Two pairs take 120 ms one after the other, and 230 ms together."""
    model, times = model_of([(1_000, 2)] * 2), times_of((50, 10, 170), (0, 0, 0))
    found = soonest_batch(model.queue, times, largest_index(model), 0, 0, False, 10.0 * MS)
    assert found == (1, 0, 1)
