"""The quantile line against every line through two of the points, one of which minimises the check loss."""

from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mainspring.scheduler.policies.baselines.quantile import quantile_line, quantile_of

Points = list[tuple[float, float]]
points = st.lists(
    st.tuples(st.integers(1, 16).map(float), st.integers(0, 1000).map(float)), min_size=2, max_size=12
)


def loss(points: Points, quantile: float, intercept: float, slope: float) -> float:
    rest = [y - intercept - slope * x for x, y in points]
    return sum(left * (quantile - (left < 0)) for left in rest)


@given(points, st.sampled_from([0.5, 0.9, 0.99]))
def test_no_line_with_a_slope_of_at_least_0_has_a_smaller_loss(points: Points, quantile: float) -> None:
    assume(len({x for x, _ in points}) > 1)
    lines = [(y, 0.0) for _, y in points]
    for (x1, y1), (x2, y2) in combinations(points, 2):
        if x1 != x2 and (y2 - y1) / (x2 - x1) >= 0:
            slope = (y2 - y1) / (x2 - x1)
            lines.append((y1 - slope * x1, slope))
    least = min(loss(points, quantile, *line) for line in lines)
    intercept, slope = quantile_line(points, quantile)
    assert slope >= 0
    assert loss(points, quantile, intercept, slope) == pytest.approx(least, rel=1e-6, abs=1e-6)


def test_a_straight_line_is_found_again() -> None:
    intercept, slope = quantile_line([(float(x), 3.0 + 2.0 * x) for x in (1, 2, 4, 8)], 0.99)
    assert intercept == pytest.approx(3.0)
    assert slope == pytest.approx(2.0)


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile_of([float(x) for x in range(100, 0, -1)], 0.99) == 99
    assert quantile_of([5.0], 0.99) == 5


def test_one_x_is_too_few() -> None:
    with pytest.raises(ValueError, match="two different x"):
        quantile_line([(1.0, 2.0), (1.0, 3.0)], 0.99)
