"""Clocks of a town."""

import pytest

from mainspring.simulator.town.clocks import Clock


@pytest.mark.parametrize("ppm", [-200, 0, 200])
def test_an_instant_is_translated_there_and_back(ppm: int) -> None:
    clock = Clock(10**12, ppm)
    for true_ns in (0, 1, 999_999, 10**9, 3 * 10**10 + 7):
        assert clock.true_ns(clock.reads(true_ns)) <= true_ns
        assert clock.reads(clock.true_ns(clock.reads(true_ns))) == clock.reads(true_ns)


def test_a_rate_adds_up_and_a_step_stays() -> None:
    clock = Clock(5, 200)
    assert clock.reads(10**9) == 5 + 10**9 + 200_000
    clock.step(10**9, 1_000)
    assert clock.reads(10**9) == 5 + 10**9 + 200_000 + 1_000
    assert clock.reads(2 * 10**9) == 5 + 2 * (10**9 + 200_000) + 1_000
