"""Durations of all buckets from few measurements: here of functions."""

from __future__ import annotations

import pytest

from mainspring.compiler.choosing.durations import profile
from mainspring.messages.model import Symbol

SEQ = Symbol("seq", (16, 32, 48, 64, 96, 128, 192, 256, 384, 512))
SIDES = (Symbol("height", (32, 64, 128, 256, 512)), Symbol("width", (32, 64, 128, 256, 512, 1024)))


def test_a_straight_line_needs_three_measurements_a_batch_size() -> None:
    asked: list[tuple[int, tuple[int, ...]]] = []

    def measure(rows: int, sizes: tuple[int, ...]) -> int:
        asked.append((rows, sizes))
        return 1000 + rows * sizes[0] * 100

    durations = profile(measure, (SEQ,), (1, 4))
    assert len(asked) == len({*asked}) <= 6
    for size in SEQ.ceilings:
        assert durations[size,][1] == pytest.approx(1000 + size * 100, rel=0.01)
        assert durations[size,][4] == pytest.approx(1000 + 4 * size * 100, rel=0.1)


def test_a_curve_is_measured_where_it_bends() -> None:
    def measure(rows: int, sizes: tuple[int, ...]) -> int:
        return rows * (10_000 + sizes[0] ** 2)

    durations = profile(measure, (SEQ,), (1, 2))
    for size in SEQ.ceilings:
        assert durations[size,][1] == pytest.approx(10_000 + size**2, rel=0.12)


def test_two_symbols_are_interpolated_together() -> None:
    durations = profile(lambda rows, sizes: 5000 + rows * sizes[0] * sizes[1], SIDES, (1, 8))
    assert len(durations) == 30
    for (height, width), seeds in durations.items():
        assert seeds[1] == pytest.approx(5000 + height * width, rel=0.15)
        assert seeds[8] >= seeds[1], "a larger batch never seems shorter"
