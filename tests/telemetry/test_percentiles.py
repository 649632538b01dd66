"""Percentiles of durations: how far off they may be, and that windows add up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.telemetry.percentiles import DurationHistogram

DURATIONS = st.lists(st.one_of(st.integers(0, 1000), st.integers(0, 10**12)), min_size=1, max_size=200)
PERCENTS = st.sampled_from([0.001, 1, 50, 90, 99, 99.99, 100])


def counted(durations_ns: Iterable[int]) -> DurationHistogram:
    histogram = DurationHistogram()
    for each in durations_ns:
        histogram.add(each)
    return histogram


@given(DURATIONS, PERCENTS)
def test_a_percentile_is_right_to_its_stated_accuracy(durations_ns: list[int], percent: float) -> None:
    exact_ns = int(np.percentile(durations_ns, percent, method="inverted_cdf"))
    found_ms = counted(durations_ns).percentile_ms(percent)
    assert found_ms == pytest.approx(exact_ns / 1e6, rel=0.004, abs=0)


@given(DURATIONS, DURATIONS, PERCENTS)
def test_what_is_added_can_be_taken_off_again(kept: list[int], gone: list[int], percent: float) -> None:
    window = counted(kept)
    window.merge(counted(gone))
    assert window.percentile_ms(percent) == counted(kept + gone).percentile_ms(percent)
    window.merge(counted(gone), -1)
    assert window.percentile_ms(percent) == counted(kept).percentile_ms(percent)
    window.merge(counted(kept), -1)
    assert window.percentile_ms(percent) is None


def test_a_negative_duration_counts_as_none() -> None:
    assert counted([-5]).percentile_ms(50) == 0
