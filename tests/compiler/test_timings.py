"""Durations in brief, and the seed estimates made of them, here and by the compiler's own measurement."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mainspring.compiler.choosing.durations import Effort, Timing, quantile, repeat
from mainspring.compiler.program.compiled import measure_load


def test_quantiles_are_durations_that_happened() -> None:
    durations = np.arange(1, 10_001)
    assert [quantile(durations, percent) for percent in (50, 99, 99.99, 100)] == [5000, 9900, 9999, 10_000]
    assert quantile(np.array([7]), 99.99) == 7


def test_seed_is_high_but_no_disturbance() -> None:
    steady = Timing.of(np.array([100] * 98 + [110, 110]))
    assert (steady.p50_ns, steady.seed_ns, steady.spread) == (100, 110, 1.1)
    assert Timing.of(np.array([100, 100, 9000])).seed_ns == 125


def test_runs_before_the_first_counted_one_do_not_count() -> None:
    durations = iter([900, 800, 1, 2, 3, 4])
    effort = Effort(seconds=0, fewest=4, warm_up=2)
    assert repeat(lambda: next(durations), effort).tolist() == [1, 2, 3, 4]


class Loading:
    """Stands in for an arena whose LOADs take as long as a script says."""

    def __init__(self, durations_ns: Iterator[int]) -> None:
        self.durations_ns = durations_ns
        self.counted: list[int] = []

    def load(self) -> int:
        self.counted.append(next(self.durations_ns))
        return self.counted[-1]


def test_a_compiled_model_has_the_seed_that_profiling_the_same_durations_gives() -> None:
    arena = Loading(itertools.chain([90_000], itertools.cycle([100, 104, 9000])))
    seed_ns = measure_load(arena)  # type: ignore[arg-type]
    assert seed_ns == Timing.of(np.array(arena.counted[1:])).seed_ns
    assert 100 <= seed_ns <= 130, "neither the first LOAD nor a disturbance makes it"
