"""How durations spread, and which models are erratic by it."""

import numpy as np
import pytest

from mainspring.cluster.estimates import FEWEST, LONG, MOST, TYPICAL, Histogram, Spreads

MS = 1_000_000


def told(long_share: float, count: int = 400, seed: int = 1) -> Spreads:
    """What is known after durations of 4 ms, of which a share took 40 ms."""
    spreads = Spreads(2)
    rng = np.random.default_rng(seed)
    for long in rng.random(count) < long_share:
        spreads.add(1, 40 * MS if long else 4 * MS)
        review(spreads)
    return spreads


def review(spreads: Spreads, *others: Spreads) -> None:
    if spreads.due:
        spreads.review(list(others))


def test_quantiles_are_at_most_a_sixteenth_too_long() -> None:
    durations = np.random.default_rng(3).lognormal(15.0, 0.8, size=900).astype(int).tolist()
    histogram = Histogram()
    for duration_ns in durations:
        histogram.add(duration_ns)
    durations.sort()
    for share, of in (LONG, TYPICAL, (1, 10), (1, 1)):
        exact_ns = durations[-(-len(durations) * share // of) - 1]
        assert exact_ns <= histogram.quantile_ns((share, of)) <= exact_ns * 17 / 16


@pytest.mark.parametrize("duration_ns", [0, 1, 31, 32, 33, 1023, 1024, 10**15])
def test_a_single_duration_is_every_quantile(duration_ns: int) -> None:
    histogram = Histogram()
    histogram.add(duration_ns)
    assert duration_ns <= histogram.quantile_ns(TYPICAL) <= duration_ns * 17 // 16


def test_memory_is_bounded_and_the_older_durations_count_less() -> None:
    histogram = Histogram()
    for _ in range(5_000):
        histogram.add(4 * MS)
    for _ in range(2 * MOST):
        histogram.add(8 * MS)
        assert histogram.total < MOST
    assert histogram.quantile_ns(TYPICAL) >= 8 * MS


def test_a_model_is_erratic_once_its_tail_passes_three_times_the_median() -> None:
    assert told(0.1).erratic
    assert not told(0.0).erratic
    assert not told(0.1, count=FEWEST - 1).erratic


def test_it_stays_so_until_its_durations_are_even() -> None:
    spreads = told(0.1)
    for index in range(20 * MOST):
        spreads.add(1, 4 * MS if index % 20 else 10 * MS)
        review(spreads)
    # Two and a half times the median would not have marked it.
    assert spreads.erratic
    for _ in range(20 * MOST):
        spreads.add(1, 4 * MS)
        review(spreads)
    assert not spreads.erratic


def test_what_others_on_the_device_show_too_is_the_device() -> None:
    spreads, even = Spreads(1), told(0.0)
    uneven = Spreads(1)
    for index in range(FEWEST):
        for each in (spreads, uneven):
            each.add(0, 40 * MS if index % 10 == 0 else 4 * MS)
    spreads.review([uneven, even])
    assert not spreads.erratic
    spreads.review([uneven, even, told(0.0, seed=2)])
    assert spreads.erratic


def test_another_one_knows_what_it_knew() -> None:
    spreads, other = told(0.1), Spreads(2)
    other.restore(spreads.counts(), spreads.total, spreads.erratic)
    assert (other.counts(), other.total) == (spreads.counts(), spreads.total)
    assert other.erratic


def test_chances_follow_the_durations() -> None:
    spreads = told(0.1)
    chances = spreads.chances(1)
    assert chances is not None
    assert chances.within(3 * MS) == 0.0
    assert chances.within(10 * MS) == pytest.approx(0.9, abs=0.05)
    assert chances.within(50 * MS) == 1.0
    assert chances.mean_ns == pytest.approx(7.6 * MS, rel=0.3)
    assert chances.quantile_ns(TYPICAL) == pytest.approx(4 * MS, rel=0.07)
    assert chances.quantile_ns(LONG) == pytest.approx(40 * MS, rel=0.07)
    # Nothing is known of the other batch size.
    assert spreads.chances(0) is None


def test_chances_take_in_what_was_measured_since() -> None:
    spreads = told(0.0)
    before = spreads.chances(1)
    for _ in range(400):
        spreads.add(1, 40 * MS)
    after = spreads.chances(1)
    assert before is not None
    assert after is not None
    assert (before.within(10 * MS), after.within(10 * MS)) == (1.0, 0.5)
