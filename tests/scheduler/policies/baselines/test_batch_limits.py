"""Limits on batches, against containers like those of the Clipper paper: its figure 4, and what it says.

The paper gives of its containers, at a latency objective of 20 ms: the linear SVM comes to nearly 30,000
queries a second, 26 times as many as without batching, and the kernel SVM to 200. A line for how long a
batch takes follows from each two of these.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mainspring.scheduler.policies.baselines.batch_limits import (
    AimdLimit,
    BatchLimit,
    QuantileLimit,
    SingleRow,
    quantile_line,
    quantile_of,
)

MS = 1_000_000
OBJECTIVE_NS = 20 * MS
MOST = 2_000
BATCHES = 6_000
SETTLED = 2_000
"""Batches before the measurement."""


def container(single_ms: float, most_rows: int) -> Callable[[int], float]:
    """Return what a batch takes, in milliseconds, if one of so many rows takes 20 ms."""
    each_ms = (20 - single_ms) / (most_rows - 1)
    return lambda rows: single_ms + each_ms * (rows - 1)


LINEAR_SVM = container(single_ms=26 * 20 / 600, most_rows=600)
KERNEL_SVM = container(single_ms=5.0, most_rows=4)


def saturate(limit: BatchLimit, takes_ms: Callable[[int], float], noise: float = 0.01) -> tuple[float, float]:
    """Serve a queue that never empties; return queries per second, and the 99th percentile in ms."""
    rng = random.Random(1)
    rows = 0
    latencies_ms = []
    for batch in range(BATCHES):
        size = limit.rows
        latency_ms = takes_ms(size) * (1 + noise * rng.random())
        limit.measured(size, size, round(latency_ms * MS), OBJECTIVE_NS)
        if batch >= SETTLED:
            rows += size
            latencies_ms.append(latency_ms)
    return rows / sum(latencies_ms) * 1e3, sorted(latencies_ms)[len(latencies_ms) * 99 // 100]


def aimd() -> AimdLimit:
    return AimdLimit(MOST, step=1.0, backoff=0.1)


def quantile() -> QuantileLimit:
    return QuantileLimit(tuple(range(1, MOST + 1)), window=200)


def test_figure_4_batching_serves_26_times_as_many_queries_of_the_linear_svm() -> None:
    single, _ = saturate(SingleRow(), LINEAR_SVM)
    for limit in (aimd(), quantile()):
        per_second, p99_ms = saturate(limit, LINEAR_SVM)
        assert 26 * 0.95 <= per_second / single <= 26
        assert per_second == pytest.approx(30_000, rel=0.05)
        assert p99_ms <= 20 * 1.01


def test_figure_4_the_two_strategies_perform_nearly_identically() -> None:
    for takes_ms in (LINEAR_SVM, KERNEL_SVM, container(2.0, 40)):
        by_aimd, _ = saturate(aimd(), takes_ms)
        by_quantile, _ = saturate(quantile(), takes_ms)
        assert by_aimd == pytest.approx(by_quantile, rel=0.08)


def test_a_container_without_a_fixed_cost_gains_nothing() -> None:
    """The kernel SVM "is limited to 200 qps under this SLO", whichever way."""
    for limit in (SingleRow(), aimd(), quantile()):
        per_second, _ = saturate(limit, KERNEL_SVM)
        assert per_second == pytest.approx(200, rel=0.02)


@pytest.mark.parametrize("most_rows", [4, 17, 100, 600])
def test_aimd_stays_within_a_tenth_below_the_largest_batch_in_time(most_rows: int) -> None:
    takes_ms, limit, seen = container(0.5, most_rows), aimd(), []
    for batch in range(5_000):
        limit.measured(limit.rows, limit.rows, round(takes_ms(limit.rows) * MS), OBJECTIVE_NS)
        if batch > 3_000:
            seen.append(limit.rows)
    assert max(seen) <= most_rows + 1
    assert min(seen) >= int(0.9 * (most_rows + 1))
    assert len(set(seen)) > 1, "it goes on looking for more"


def test_aimd_grows_by_a_step_and_backs_off_by_a_tenth() -> None:
    limit = AimdLimit(MOST, step=4.0, backoff=0.1)
    for rows in (5, 9, 13, 17, 21):
        limit.measured(limit.rows, limit.rows, OBJECTIVE_NS, OBJECTIVE_NS)
        assert limit.rows == rows
    limit.measured(limit.rows, limit.rows, OBJECTIVE_NS + 1, OBJECTIVE_NS)
    assert limit.rows == 18
    limit.measured(5, 5, MS, OBJECTIVE_NS)
    assert limit.rows == 18, "a batch that was not full says nothing of a larger one"


def test_limits_keep_between_one_row_and_the_most() -> None:
    for limit in (AimdLimit(3, 2.0, 0.5), QuantileLimit((1, 2, 3), 10)):
        for _ in range(30):
            limit.measured(limit.rows, limit.rows, MS * limit.rows, OBJECTIVE_NS)
        assert limit.rows == 3
        for _ in range(30):
            limit.measured(limit.rows, limit.rows, 2 * OBJECTIVE_NS, OBJECTIVE_NS)
        assert limit.rows == 1


@pytest.mark.parametrize("limit", [aimd(), quantile()], ids=["aimd", "quantile"])
def test_a_container_that_slows_down_gets_smaller_batches_and_larger_ones_again(limit: BatchLimit) -> None:
    """ "Robust to changes in throughput capacity of a model (e.g., during a garbage collection pause)"."""
    fast, slow = container(1.0, 100), container(2.0, 40)
    limits = []
    for takes_ms in (fast, slow, fast):
        for _ in range(1_500):
            limit.measured(limit.rows, limit.rows, round(takes_ms(limit.rows) * MS), OBJECTIVE_NS)
        limits.append(limit.rows)
    assert limits[0] == pytest.approx(100, abs=12)
    assert limits[1] == pytest.approx(40, abs=6)
    assert limits[2] == pytest.approx(100, abs=12)


def test_the_line_chooses_among_compiled_sizes_only() -> None:
    """A batch of 9 rows would run, and be measured, as one of 16."""
    limit, takes_ms = QuantileLimit((1, 2, 4, 8, 16), window=50), container(1.0, 12)
    for _ in range(200):
        limit.measured(limit.rows, limit.rows, round(takes_ms(limit.rows) * MS), OBJECTIVE_NS)
    assert limit.rows == 8


def test_the_line_is_not_trusted_far_beyond_what_was_measured() -> None:
    limit = QuantileLimit(tuple(range(1, 101)), window=50)
    limit.measured(1, 1, 2 * MS, OBJECTIVE_NS)
    limit.measured(2, 2, 2 * MS, OBJECTIVE_NS)
    assert limit.rows == 4


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
