from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainspring.simulator.bound.program import Grid, Prices, Windows

per_ns = st.lists(st.floats(0, 5), min_size=1, max_size=8)


@given(per_ns, st.integers(1, 60), st.integers(0, 90), st.integers(0, 40))
def test_the_least_cost_of_a_window_is_that_of_the_best_of_its_instants(
    prices: list[float], duration: int, first: int, width: int
) -> None:
    grid = Grid(0, 10 * len(prices), 10)
    priced = Prices(grid, np.array(prices))
    window = Windows(grid, np.array([float(first)]), np.array([float(first + width)]), duration)
    every = np.arange(first, first + width + 0.25, 0.25)
    np.testing.assert_allclose(window.costs(priced)[0], priced.of(every, duration).min(), atol=1e-9)
    begin = window.cheapest(priced, np.array([0]), np.random.default_rng(0))
    assert first <= begin[0] <= first + width
    np.testing.assert_allclose(priced.of(begin, duration), window.costs(priced), atol=1e-5)


def test_a_window_that_ends_before_it_begins_has_no_price() -> None:
    grid = Grid(0, 100, 10)
    window = Windows(grid, np.array([50.0]), np.array([49.0]), 5)
    assert window.costs(Prices(grid, np.zeros(10)))[0] == np.inf


@given(st.lists(st.floats(0, 99), min_size=1, max_size=9), st.floats(0.5, 60))
def test_usage_is_the_time_that_intervals_take_of_each_bucket(begins: list[float], duration: float) -> None:
    grid = Grid(0, 100, 10)
    used = grid.usage(np.array(begins), duration)
    for bucket, share in enumerate(used):
        low, high = 10 * bucket, 10 * bucket + 10
        overlap = sum(max(0.0, min(high, begin + duration) - max(low, begin)) for begin in begins)
        assert abs(share - overlap / 10) < 1e-9
