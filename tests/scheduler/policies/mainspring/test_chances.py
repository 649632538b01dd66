"""Batches of erratic models: chosen by their chances."""

from __future__ import annotations

import pytest

from mainspring.cluster.estimates import FEWEST, InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.requests import DeadlineQueue
from mainspring.scheduler.policies.mainspring.chances import held_ns, least_ns, likeliest_batch, long_ns
from tests.cluster import made
from tests.scheduler.hand import MS, spec

SCALE_NS = 30.0 * MS


@pytest.fixture
def times() -> InferTimes:
    """One row takes 4 ms, 1 in 10 takes 40; two rows take 5 or, 1 in 5, 50; nothing is known of four."""
    found = InferTimes((1, 2, 4), [4 * MS, 5 * MS, 60 * MS])
    for count in range(2 * FEWEST):
        found.add(0, 0, 40 * MS if count % 10 == 0 else 4 * MS)
        found.add(0, 1, 50 * MS if count % 5 == 0 else 5 * MS)
    return found


def queue_of(*dues_ms: int) -> DeadlineQueue:
    model = Model(spec("m"), 1)
    for id_, due_ms in enumerate(dues_ms, 1):
        model.queue.add(made.request(id_, model, 1, 0, due_ms * MS))
    return model.queue


def chosen(times: InferTimes, queue: DeadlineQueue, top: int) -> tuple[int, int]:
    """Return (size's index, first request's index) for EXEC that is free at once."""
    found = likeliest_batch(queue, times, top, 0, 0, SCALE_NS)
    assert found is not None
    return found[1], found[2]


def test_durations_are_told_by_their_distribution_and_by_estimates_before_that(times: InferTimes) -> None:
    assert least_ns(times, 0) == pytest.approx(4 * MS, rel=0.07)
    assert held_ns(times, 1) == pytest.approx(5 * MS, rel=0.07)
    assert long_ns(times, 0) == pytest.approx(40 * MS, rel=0.07)
    assert least_ns(times, 2) == held_ns(times, 2) == long_ns(times, 2) == times.ns[2]


def test_a_request_that_a_long_duration_would_make_late_has_its_chance(times: InferTimes) -> None:
    assert chosen(times, queue_of(10), 0) == (0, 0)


def test_a_request_that_is_rather_late_than_not_has_none(times: InferTimes) -> None:
    assert likeliest_batch(queue_of(3), times, 0, 0, 0, SCALE_NS) is None


def test_requests_with_better_chances_go_first(times: InferTimes) -> None:
    # The first has 9 chances in 10, the second is in time whatever happens.
    assert chosen(times, queue_of(20, 42), 0) == (0, 1)
    # The second can wait for so long that the first goes before it.
    assert chosen(times, queue_of(20, 400), 0) == (0, 0)


def test_a_larger_batch_is_taken_only_if_its_tail_leaves_it_worth_more(times: InferTimes) -> None:
    # Two rows in 14 ms on average against one in 7.6: with time enough for both they are equal at best.
    assert chosen(times, queue_of(20, 20), 1) == (0, 0)
    for _ in range(4 * FEWEST):
        times.add(0, 1, 5 * MS)
    assert chosen(times, queue_of(20, 20), 1) == (1, 0)
