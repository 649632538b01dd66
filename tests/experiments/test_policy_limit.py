"""The best schedule of a small instance: that it is one, that none is better, and what the command says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mainspring.experiments.policies import limit
from mainspring.experiments.policies.scenarios import USUAL
from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound

PROFILES = Path(__file__).resolve().parents[2] / "../shared/profiles/clockwork_table1.csv"


def stream(arrivals: Sequence[int], slo: int, table: dict[int, int]) -> Stream:
    arrival_ns = np.array(sorted(arrivals), np.int64)
    return Stream(arrival_ns, arrival_ns + slo, {USUAL: table})


def every_schedule(streams: Sequence[Stream], free: tuple[int, ...], left: frozenset[tuple[int, int]]) -> int:
    """Return what the best of all schedules answers, whichever requests are together in a batch."""
    now, *others = sorted(free)
    most = 0
    for number, each in enumerate(streams):
        for size, duration in each.infer_ns[USUAL].items():
            there = [
                one
                for one in left
                if one[0] == number
                and each.arrival_ns[one[1]] <= now
                and each.due_ns[one[1]] >= now + duration
            ]
            for count in range(1, min(size, len(there)) + 1):
                for chosen in combinations(there, count):
                    after = every_schedule(streams, (*others, now + duration), left - set(chosen))
                    most = max(most, count + after)
    later = [int(streams[one].arrival_ns[two]) for one, two in left if streams[one].arrival_ns[two] > now]
    if later:
        most = max(most, every_schedule(streams, (*others, min(later)), left))
    return most


streams_of_few = st.lists(
    st.builds(
        stream,
        st.lists(st.integers(0, 8), min_size=1, max_size=2),
        st.integers(2, 7),
        st.sampled_from([{1: 2, 2: 3}, {1: 1, 2: 4}, {1: 3}]),
    ),
    min_size=1,
    max_size=2,
)


@given(streams_of_few, st.integers(1, 2))
def test_no_schedule_is_better_and_the_bound_is_not_lower(streams: list[Stream], devices: int) -> None:
    left = frozenset((number, one) for number, each in enumerate(streams) for one in range(len(each.due_ns)))
    begin = min(int(each.arrival_ns[0]) for each in streams)
    best = limit.best(streams, devices)
    assert best == every_schedule(streams, (begin,) * devices, left)
    assert goodput_bound(streams, Fleet({USUAL: devices}), iterations=5).requests >= best - 1e-6


def test_a_device_waits_for_what_comes() -> None:
    # Whoever begins with the first of the two serves it alone.
    assert limit.best([stream([0, 3], 10, {1: 6, 2: 7})], 1) == 2


def test_what_ends_too_late_for_a_batch_is_left_to_another_device() -> None:
    # At 2 the second device serves, alone, the one for which the batch of the two later ones is too slow.
    first = stream([1, 2, 2], 5, {1: 4, 2: 5})
    assert limit.best([first], 1) == 2
    assert limit.best([first], 2) == 3


def test_a_known_schedule_changes_nothing() -> None:
    streams = [stream([0, 1, 2, 5, 6], 9, {1: 4, 2: 5}), stream([0, 4], 6, {1: 3})]
    best = limit.best(streams, 1)
    assert [limit.best(streams, 1, known) for known in range(best + 1)] == [best] * (best + 1)


@pytest.mark.skipif(not PROFILES.exists(), reason=f"there is no table of profiles at {PROFILES}")
def test_the_command_compares_bound_best_and_policy() -> None:
    arguments = ["--models", "2", "--loads", "1", "--seconds", "0.05", "--seeds", "1"]
    found = limit.limit_of(PROFILES, 2, 1, 1.0, 0.05, 1)
    assert found.bound + 1e-6 >= found.best >= found.served > 0
    result = CliRunner().invoke(_app(), [*arguments, "--profiles", str(PROFILES)])
    assert result.exit_code == 0, result.output
    assert f" {found.best} " in result.output


def _app() -> typer.Typer:
    made = typer.Typer()
    made.command()(limit.main)
    return made
