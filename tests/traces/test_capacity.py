"""What a load is a multiple of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainspring.traces.shapes import best_request_ns, device_s, slowest_of

EVEN = {1: 10, 2: 12, 4: 20}


@pytest.mark.parametrize(("slo_ns", "expected"), [(None, 5), (100, 5), (19, 6), (11, 10), (3, 10)])
def test_the_best_batch_has_the_least_time_for_each_request_and_is_in_time(
    slo_ns: int | None, expected: int
) -> None:
    assert best_request_ns(EVEN, slo_ns) == expected


@pytest.mark.parametrize(("rows", "expected"), [(2, 10), (3, 20), (4, 20), (9, 20)])
def test_requests_of_several_rows_fill_batches_sooner(rows: int, expected: int) -> None:
    assert best_request_ns(EVEN, None, rows) == expected


def test_devices_of_several_kinds_share_a_request_by_their_speeds() -> None:
    assert device_s({"fast": 1e6, "slow": 4e6}, {"fast": 2, "slow": 4}) == pytest.approx(1 / 3000)


def test_the_slowest_of_several_takes_longer_than_one() -> None:
    drawn = np.random.default_rng(1).normal(0.0, 0.5, (40_000, 8))
    assert slowest_of(8, 0.5) == pytest.approx(float(np.exp(drawn.max(axis=1)).mean()), rel=0.02)
    assert slowest_of(1, 0.5) == pytest.approx(math.exp(0.5**2 / 2), rel=0.01)
