"""What `make bench-warming` makes of its runs."""

from __future__ import annotations

import pytest

from mainspring.experiments.bench.warming import MOST_RATIO, Size, figures


def sizes(*first_ns: int) -> list[Size]:
    return [Size(1, length, first, 100.0) for length, first in enumerate(first_ns, start=8)]


def test_the_slowest_size_is_named_and_the_median_judged() -> None:
    median, worst, cold = figures([(1.5, sizes(101, 100, 180)), (1.3, sizes(99, 102, 160))])
    assert median.value == pytest.approx(1.015)
    assert median.met
    assert worst.value == pytest.approx(1.7)
    assert worst.note == "1 rows of 10"
    assert cold.value == pytest.approx(1.4)
    slow, *_ = figures([(1.0, sizes(120, 120, 120))])
    assert slow.value > MOST_RATIO
    assert slow.met is False
