"""The tuner: envelopes by their definition, and what it decides on traces that change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.planner.graph_queues import GraphQueues, read_graph_problem
from mainspring.planner.inferline import inferline, sample_of
from mainspring.planner.problem import Whole
from mainspring.planner.tuner import (
    LONGEST_NS,
    SECOND_NS,
    Sample,
    TunedStep,
    Tuner,
    envelope,
    needed,
    windows_ns,
)
from tests.planner.test_graph_queues import pipeline

arrivals = st.lists(st.integers(0, 9), min_size=1, max_size=40).map(
    lambda gaps: np.cumsum(gaps, dtype=np.int64)
)


def gamma(rate: float, seconds: float, cv: float, seed: int, begin_s: float = 0.0) -> Whole:
    shape = 1 / cv**2
    gaps = np.random.default_rng(seed).gamma(shape, 1 / (rate * shape), round(rate * seconds))
    return ((begin_s + np.cumsum(gaps)) * SECOND_NS).astype(np.int64)


def sample(rate: float = 150, cv: float = 1) -> Sample:
    """Return two steps, one of which has half the queries, that are busy for 60 and 80 % of the time."""
    windows = windows_ns(50_000_000)
    steps = (
        TunedStep(1.0, 50, rate / (50 * 5), 5),
        TunedStep(0.5, 31.25, rate * 0.5 / (31.25 * 3), 3),
    )
    return Sample(windows, envelope(gamma(rate, 600, cv, 1), windows), steps)


def decisions(tuner: Tuner, came: Whole, seconds: int) -> list[tuple[int, ...]]:
    """Return what is decided at the end of each second."""
    found, place = [], 0
    for second in range(1, seconds + 1):
        while place < len(came) and came[place] <= second * SECOND_NS:
            tuner.arrived(int(came[place]))
            place += 1
        found.append(tuner.decide(second * SECOND_NS))
    return found


@given(arrivals, st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_an_envelope_is_the_most_in_any_window(due_ns: Whole, windows: list[int]) -> None:
    most = tuple(
        max(int(((due_ns > end - window) & (due_ns <= end)).sum()) for end in range(int(due_ns[-1]) + 1))
        for window in windows
    )
    assert envelope(due_ns, windows) == most


@given(st.integers(1, 2 * LONGEST_NS))
def test_windows_double_to_a_minute(service_ns: int) -> None:
    found = windows_ns(service_ns)
    assert found[0] == min(service_ns, LONGEST_NS)
    assert found[-1] == LONGEST_NS
    assert all(after <= 2 * before and after > before for before, after in itertools.pairwise(found))


@given(st.floats(1, 1000), st.floats(0.1, 3), st.floats(1, 200), st.integers(1, 50))
def test_the_sample_needs_what_was_planned(rate: float, share: float, one: float, replicas: int) -> None:
    step = TunedStep(share, one, rate * share / (one * replicas), replicas)
    assert needed(rate, step, step.load) == replicas
    assert needed(1.01 * rate, step, step.load) > replicas


def test_without_news_nothing_changes() -> None:
    made = sample()
    came = gamma(150, 600, 1, 1)
    steady = decisions(Tuner(made, 0), came[came < 200 * SECOND_NS], 200)
    first = tuple(step.replicas for step in made.steps)
    assert all(wanted <= usual for each in steady for wanted, usual in zip(each, first, strict=True))
    assert steady[:29] == [first] * 29


def test_a_rise_is_followed_within_five_seconds() -> None:
    made = sample()
    came = np.concatenate([gamma(150, 40, 1, 2), gamma(250, 60, 1, 3, begin_s=40)])
    found = decisions(Tuner(made, 0), came, 100)
    assert all(
        wanted >= needed(250, step, step.load) * 0.95
        for wanted, step in zip(found[-1], made.steps, strict=True)
    )
    assert any(each > step.replicas for each, step in zip(found[44], made.steps, strict=True))


def test_more_bursts_at_the_same_rate_are_followed() -> None:
    made = sample()
    found = decisions(Tuner(made, 0), gamma(150, 60, 4, 5), 60)
    assert found[-1][0] > made.steps[0].replicas


def test_after_a_fall_replicas_go_when_it_has_been_calm_with_the_least_load() -> None:
    made = sample()
    came = np.concatenate([gamma(300, 40, 1, 2), gamma(50, 80, 1, 3, begin_s=40)])
    found = decisions(Tuner(made, 0), came, 120)
    most = max(found)
    assert most > (5, 3)
    # The busiest 5 s windows of the last 30 s are of the high rate until second 65 to 70.
    assert found[60] == most
    least = min(step.load for step in made.steps)
    final = [needed(50 * 1.3, step, least) for step in made.steps]
    assert all(1 <= each <= most_of for each, most_of in zip(found[-1], final, strict=True))


def test_no_window_is_longer_than_the_sample() -> None:
    problem = read_graph_problem(pipeline())
    made = sample_of(problem, inferline(GraphQueues(problem)))
    assert made.windows[-1] <= 21 * SECOND_NS
    came = gamma(150, 100, 1, 7)
    found = decisions(Tuner(made, 0), came, 100)
    assert max(each[0] for each in found) <= 1.5 * made.steps[0].replicas


def test_bursts_take_less_in_proportion_than_by_the_rate_of_their_window() -> None:
    made, came = sample(), gamma(150, 60, 2, 5)
    ours, papers = (decisions(Tuner(made, 0, relative=each), came, 60)[-1] for each in (True, False))
    assert made.steps[0].replicas < ours[0] < papers[0]


def test_a_plan_tells_the_tuner_its_loads() -> None:
    problem = read_graph_problem(pipeline())
    stations = inferline(GraphQueues(problem))
    made = sample_of(problem, stations)
    assert [step.replicas for step in made.steps] == [each.replicas for each in stations]
    assert all(0 < step.load < 1 for step in made.steps)
    assert made.steps[1].share == pytest.approx(0.4, rel=0.1)
    rate = problem.queries.rate
    assert [needed(rate, step, step.load) for step in made.steps] == [each.replicas for each in stations]
