"""What the benchmark of requests with many rows makes of its samples."""

from __future__ import annotations

import pytest

from mainspring.experiments.bench.many_rows import BATCH, Samples, figures_of, parts_of


def test_parts_are_batches_and_cover_the_rows_once() -> None:
    parts = parts_of(500)
    assert len(parts) == -(-500 // BATCH)
    assert [row for first, end in parts for row in range(first, end)] == list(range(500))


def test_the_ratio_is_of_medians_and_has_the_target() -> None:
    one, many = Samples([110.0, 99.0, 500.0], [2.0] * 3), Samples([100.0] * 3, [4.0] * 3)
    ratio, processor, *_ = figures_of(500, one, many)
    assert ratio.value == pytest.approx(1.1)
    assert ratio.met
    assert (processor.value, processor.met) == (0.5, None)
