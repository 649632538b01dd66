from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound

TABLE = {1: 10, 2: 14, 4: 22}
LENGTH = 6_000
ROW = 22 / 4
"""The least time of a request."""


def stream(requests: list[tuple[int, int]], table: Mapping[int, int] = TABLE) -> Stream:
    """Requests given as (arrival, SLO)."""
    arrivals = np.array(sorted(arrival for arrival, _ in requests), np.int64)
    slos = np.array([slo for _, slo in sorted(requests)], np.int64)
    return Stream(arrivals, arrivals + slos, {"d": table})


NONE = -1_000
"""Less than any schedule answers."""


def optimum(
    streams: list[Stream],
    free: int = 0,
    done: frozenset[tuple[int, int]] = frozenset(),
    floor: float = 0.0,
) -> int:
    """The most that one device can answer in time: every batch of any requests, one after the other.

    `NONE` if no schedule answers the floor's share of each stream.
    """
    least = [int(floor * len(one.arrival_ns)) for one in streams]
    counts = [sum(number == each for each, _ in done) for number in range(len(streams))]
    best = 0 if all(map(int.__ge__, counts, least)) else NONE
    for number, one in enumerate(streams):
        left = [row for row in range(len(one.arrival_ns)) if (number, row) not in done]
        for mask in range(1, 1 << len(left)):
            rows = [row for bit, row in enumerate(left) if mask >> bit & 1]
            sizes = [size for size in one.infer_ns["d"] if size >= len(rows)]
            if not sizes:
                continue
            begin = max(free, int(one.arrival_ns[rows].max()))
            end = begin + one.infer_ns["d"][min(sizes)]
            if end <= int(one.due_ns[rows].min()):
                chosen = done | {(number, row) for row in rows}
                best = max(best, len(rows) + optimum(streams, end, chosen, floor))
    return best


requests = st.lists(st.tuples(st.integers(0, 60), st.integers(5, 45)), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, min_size=1, max_size=2))
def test_no_schedule_of_one_device_does_better(each: list[list[tuple[int, int]]]) -> None:
    streams = [stream(one) for one in each]
    found = goodput_bound(streams, Fleet({"d": 1}), iterations=15, bucket_ns=5)
    assert found.requests >= optimum(streams) - 1e-6


@settings(max_examples=25, deadline=None)
@given(st.lists(requests, min_size=2, max_size=2), st.sampled_from([0.34, 0.5, 1.0]))
def test_no_schedule_that_keeps_a_floor_does_better(each: list[list[tuple[int, int]]], floor: float) -> None:
    streams = [stream(one) for one in each]
    found = goodput_bound(streams, Fleet({"d": 1}), iterations=40, bucket_ns=5, floor=floor)
    assert found.requests >= optimum(streams, floor=floor) - 1e-6


def test_a_floor_costs_what_the_slow_model_takes() -> None:
    rng = np.random.default_rng(1)
    quick, slow = (np.sort(rng.integers(0, LENGTH, 700)) for _ in range(2))
    tables = ({1: 10}, {1: 40})
    streams = [
        Stream(each, each + 120, {"d": table}) for each, table in zip((quick, slow), tables, strict=True)
    ]
    free = goodput_bound(streams, Fleet({"d": 1}), iterations=60)
    floored = goodput_bound(streams, Fleet({"d": 1}), iterations=150, floor=0.1)
    # Of 6,000 ns the slow model's 70 requests take 2,800, in which 280 quick ones could run.
    assert 600 <= free.requests < 700
    assert 600 - 280 + 70 <= floored.requests < 0.8 * free.requests
    with pytest.raises(ValueError, match="it must be a share from 0 to 1"):
        goodput_bound(streams, Fleet({"d": 1}), floor=1.5)


def test_what_nothing_is_in_the_way_of_is_all_possible() -> None:
    found = goodput_bound([stream([(at, 20) for at in range(0, 1000, 50)])], Fleet({"d": 1}), iterations=20)
    assert found.requests == found.offered == 20


def test_what_can_never_be_in_time_is_not_possible() -> None:
    streams = [stream([(at, 20) for at in range(0, 500, 50)]), stream([(at, 9) for at in range(0, 500, 50)])]
    assert goodput_bound(streams, Fleet({"d": 1}), iterations=20).requests == pytest.approx(10, abs=0.5)


def overload(rate: float, seed: int = 0) -> list[Stream]:
    """Four models with 120 ns of SLO for 6,000 ns, at ``rate`` times what one device can do at best."""
    rng = np.random.default_rng(seed)
    count = int(LENGTH / ROW * rate / 4)
    arrivals = [np.sort(rng.integers(0, LENGTH, count)) for _ in range(4)]
    tables = {"d": TABLE, "fast": {size: ns // 2 for size, ns in TABLE.items()}}
    return [Stream(each, each + 120, tables) for each in arrivals]


def test_an_overloaded_device_is_bounded_by_its_best_batches() -> None:
    streams = overload(1.5)
    found = goodput_bound(streams, Fleet({"d": 1}), iterations=40)
    best = LENGTH / ROW
    assert 0.85 * best < found.requests < 1.05 * best < found.offered
    assert found.requests <= min(found.iterations)


def test_more_and_faster_devices_can_do_more() -> None:
    streams = overload(2.5)
    one, two, fast, mixed = (
        goodput_bound(streams, Fleet(devices), iterations=20).requests
        for devices in ({"d": 1}, {"d": 2}, {"fast": 1}, {"d": 1, "fast": 1})
    )
    assert one * 1.7 < two < one * 2.1
    assert fast == pytest.approx(two, rel=0.05), "half the time is twice the devices"
    assert two < mixed * 0.99


def test_models_that_do_not_fit_together_cost_pages_or_transfers() -> None:
    both = [
        Stream(np.arange(at, 40_000, 400), np.arange(at, 40_000, 400) + 50, {"d": TABLE}, {"d": 9_000}, 10)
        for at in (0, 200)
    ]
    enough = goodput_bound(both, Fleet({"d": 1}, pages=20), iterations=60)
    short = goodput_bound(both, Fleet({"d": 1}, pages=10), iterations=60)
    assert enough.requests == enough.offered == 200
    assert 100 < short.requests < 150, "while one is loaded, the other can't be there"


def test_the_same_arguments_give_the_same_bound() -> None:
    streams = overload(1.2, seed=3)
    first, second = (goodput_bound(streams, Fleet({"d": 1}), iterations=10) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("streams", "fleet", "words"),
    [
        ([], Fleet({"d": 1}), "a request in each"),
        ([stream([(0, 9)])], Fleet({"d": 0}), "a device of each kind"),
        ([stream([(0, 9)])], Fleet({"e": 1}), "no durations for devices of kind e"),
        ([Stream(np.array([5, 3]), np.array([9, 9]), {"d": TABLE})], Fleet({"d": 1}), "ascending order"),
    ],
)
def test_what_makes_no_sense_is_refused(streams: list[Stream], fleet: Fleet, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        goodput_bound(streams, fleet)
