"""Combinators: order, determinism, and what each does to counts and times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.generators import Gamma, Poisson, azure_like
from mainspring.traces.workload import Workload, at_rate, mean_rate


@dataclass(frozen=True)
class Listed(Workload):
    times: tuple[int, ...]
    name: str = "m"

    @property
    def models(self) -> tuple[str, ...]:
        return (self.name,)

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        return (Arrival(time_ns, self.name) for time_ns in self.times)


def play(workload: Workload, seed: int = 0) -> list[Arrival]:
    return list(workload.arrivals(np.random.default_rng(seed)))


def in_order(arrivals: list[Arrival]) -> bool:
    return all(a.time_ns <= b.time_ns for a, b in pairwise(arrivals))


def some_workload(kind: int) -> Workload:
    rates = {"a": 30.0, "b": 5.0, "c": 0.0}
    return (Poisson(rates), Gamma(rates, 3.0), azure_like(("a", "b", "c"), 40.0))[kind]


sorted_times = st.lists(st.integers(0, 10 * SECOND_NS), max_size=40).map(lambda times: tuple(sorted(times)))


@given(
    kind=st.integers(0, 2),
    factor=st.floats(0.05, 4),
    stretch=st.floats(0.1, 3),
    start=st.integers(0, SECOND_NS),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_any_composition_is_ordered_and_the_same_for_the_same_seed(
    kind: int, factor: float, stretch: float, start: int, seed: int
) -> None:
    def made() -> Workload:
        whole = some_workload(kind).scaled(factor).stretched(stretch)
        return whole.cut(start, start + 2 * SECOND_NS).with_requests(slo_ns=5, rows=2)

    arrivals = play(made(), seed)
    assert in_order(arrivals)
    assert all(0 <= a.time_ns < 2 * SECOND_NS and a.rows == 2 and a.slo_ns == 5 for a in arrivals)
    assert {a.model for a in arrivals} <= set(made().models)
    assert arrivals == play(made(), seed)
    if len(arrivals) > 20:
        assert arrivals != play(made(), seed + 1)


@given(times=sorted_times, copies=st.integers(1, 4))
def test_scaling_by_a_whole_number_copies_each_arrival_in_order(times: tuple[int, ...], copies: int) -> None:
    scaled = play(Listed(times).scaled(copies))
    assert len(scaled) == copies * len(times)
    assert in_order(scaled)
    assert [a.time_ns for a in scaled if a.time_ns in set(times)].count(times[0] if times else -1) >= bool(
        times
    )


def test_scaling_down_keeps_a_random_share() -> None:
    kept = play(Listed(tuple(range(20_000))).scaled(0.3))
    assert 5600 < len(kept) < 6400


@given(times=sorted_times, start=st.integers(0, SECOND_NS), length=st.integers(1, 9 * SECOND_NS))
def test_cut_keeps_exactly_the_window_and_moves_it_to_zero(
    times: tuple[int, ...], start: int, length: int
) -> None:
    kept = [a.time_ns for a in play(Listed(times).cut(start, start + length))]
    assert kept == [t - start for t in times if start <= t < start + length]


def test_stretching_multiplies_times() -> None:
    assert [a.time_ns for a in play(Listed((10, 20)).stretched(0.5))] == [5, 10]


def test_an_endless_workload_is_generated_lazily() -> None:
    stream = Poisson({"m": 1000.0}).scaled(2).stretched(3).arrivals(np.random.default_rng(0))
    assert len([next(stream) for _ in range(100)]) == 100


def test_at_rate_reaches_the_rate_asked_for() -> None:
    duration_ns = 200 * SECOND_NS
    workload = at_rate(Gamma({"a": 3.0, "b": 9.0}, 2.0), 60.0, duration_ns, np.random.default_rng(1))
    assert mean_rate(workload, duration_ns, np.random.default_rng(1)) == pytest.approx(60, rel=0.1)


def test_at_rate_of_nothing_says_why() -> None:
    with pytest.raises(WorkloadError, match="no arrival in its first 1 s"):
        at_rate(Listed((5 * SECOND_NS,)), 10, SECOND_NS, np.random.default_rng(0))


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_factors_that_make_no_sense_are_refused(factor: float) -> None:
    with pytest.raises(WorkloadError, match="positive finite"):
        Listed(()).scaled(factor)
    with pytest.raises(WorkloadError, match="positive finite"):
        Listed(()).stretched(factor)


def test_windows_slos_and_rows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(WorkloadError, match="start < end"):
        Listed(()).cut(5, 5)
    with pytest.raises(WorkloadError, match="rows"):
        Listed(()).with_requests(slo_ns=1, rows=0)
    with pytest.raises(WorkloadError, match="SLO"):
        Listed(()).with_requests(slo_ns=0)
