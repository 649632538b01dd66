"""What one core could have answered in time."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.compiler.zoo.catalogue import build
from mainspring.experiments.bench.triton.possible import in_time_percent, runner

FIVE = np.array([5.0])


def test_requests_far_apart_are_all_in_time_unless_nothing_could_be() -> None:
    instants = np.linspace(0.0, 0.9, 10)
    assert in_time_percent(instants, FIVE, 25.0, 3.0) == 100
    assert in_time_percent(instants, FIVE, 8.0, 3.0) == 100
    assert in_time_percent(instants, FIVE, 7.9, 3.0) == 0


def test_of_requests_that_come_together_as_many_are_in_time_as_fit_one_after_the_other() -> None:
    assert in_time_percent(np.zeros(10), FIVE, 25.0, 0.0) == 50
    assert in_time_percent(np.zeros(10), FIVE, 25.0, 3.0) == 40


def test_what_would_be_late_takes_no_time_from_what_comes_behind_it() -> None:
    slow_and_fast = np.array([5.0, 100.0])
    instants = np.linspace(0.0, 6.0, 1_000)
    found = in_time_percent(instants, slow_and_fast, 25.0, 0.0)
    assert found == pytest.approx(50, abs=5)
    assert in_time_percent(instants, slow_and_fast, 25.0, 0.0, seed=1) != found


def test_the_bare_model_runs_at_least_once_and_as_long_as_it_is_told() -> None:
    run = runner(build("digits", 0))
    assert len(run(0.0)) == 1
    found = run(0.2)
    assert len(found) > 1
    assert (found > 0).all()
