from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.simulator.bound import program
from mainspring.simulator.bound.program import Problem, solve


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    requests, most = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    gain = st.one_of(st.just(-np.inf), st.integers(-2, 4).map(float))
    gains = np.array([[draw(gain) for _ in range(most)] for _ in range(requests)])
    gaps = draw(st.lists(st.integers(0, 9), min_size=requests, max_size=requests))
    hold, enter = draw(st.sampled_from([0.0, 0.25])), draw(st.sampled_from([0.0, 1.0, 3.0]))
    return Problem(gains, np.cumsum(gaps).astype(float), 0.0, hold, enter, draw(st.booleans()))


def best(problem: Problem) -> float:
    """The same by trying everything: serve a batch, stay, leave or come back before each request."""
    arrivals = problem.arrivals_ns.tolist()
    requests, most = problem.gains.shape

    @cache
    def rest(row: int, since: float | None) -> float:
        """``since``: until when the residency has been paid for; None if away."""
        if row == requests:
            return 0.0
        found = rest(row + 1, since)
        if since is not None:
            found = max(found, rest(row, None))
        pay = -problem.enter if since is None else problem.hold * (since - arrivals[row])
        for count in range(1, min(most, requests - row) + 1):
            last = row + count - 1
            gain = problem.gains[last, count - 1]
            if gain > -np.inf:
                held = problem.hold * (arrivals[last] - arrivals[row])
                found = max(found, gain + pay - held + rest(last + 1, arrivals[last]))
        return found

    return rest(0, problem.start_ns if problem.resident else None)


@given(st.lists(problems(), min_size=1, max_size=4))
def test_it_finds_what_trying_everything_finds(each: list[Problem]) -> None:
    value, choices = solve(each)
    assert value == pytest.approx(sum(best(problem) for problem in each))
    for problem, choice in zip(each, choices, strict=True):
        gain = sum(problem.gains[last, count - 1] for last, count in choice.batches.tolist())
        paid = problem.hold * choice.held_ns + problem.enter * choice.loads
        assert gain - paid == pytest.approx(best(problem))
        used = [row for last, count in choice.batches.tolist() for row in range(last - count + 1, last + 1)]
        assert len(used) == len(set(used)), "a request in two batches"


def one_batch_a_part() -> Problem:
    """Return a problem whose last part would gain nothing if it paid for the overlap too."""
    gains = np.full((7, 3), -np.inf)
    gains[1, 1] = gains[5, 2] = gains[6, 0] = 1.0
    return Problem(gains, np.array([0.0] * 5 + [1.0] * 2), 0.0, 0.25, 1.0, resident=False)


@given(st.lists(problems(), min_size=1, max_size=3))
@example([one_batch_a_part()])
def test_a_cut_stream_gains_no_less_and_hardly_more(each: list[Problem]) -> None:
    whole = solve(each)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "CHUNK", 3)
        cut = solve(each)[0]
    most = sum(problem.gains.max(initial=0, where=problem.gains > 0) + 3 for problem in each)
    assert whole - 1e-9 <= cut <= whole + 3 * most
