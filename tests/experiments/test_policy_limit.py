"""The best schedule of a small instance: that it is one, that none is better, and what the command says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mainspring.experiments.policies import limit
from mainspring.experiments.policies.scenarios import USUAL
from mainspring.experiments.policies.short import Lane, Proven, best_short
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
    assert found.best.found == found.best.most
    assert found.bound + 1e-6 >= found.best.found >= found.served > 0
    result = CliRunner().invoke(_app(), [*arguments, "--profiles", str(PROFILES)])
    assert result.exit_code == 0, result.output
    assert f" {found.best.found} " in result.output


def lane(arrivals: Sequence[int], slo: int, table: dict[int, int], load: int, pages: int, held: bool) -> Lane:
    return Lane(
        sorted(arrivals), [at + slo for at in sorted(arrivals)], sorted(table.items()), load, pages, held
    )


def every_short_schedule(lanes: Sequence[Lane], pages: int) -> int:
    """Return what the best of all schedules answers, of which each begins whatever it begins at any step."""

    @cache
    def most(
        now: int, busy: tuple[int, int], copying: tuple[int, int], held: int, left: frozenset[tuple[int, int]]
    ) -> int:
        if now > max(each.due[-1] for each in lanes):
            return 0
        found = most(now + 1, busy, copying, held, left)
        for number, each in enumerate(lanes):
            there = held >> number & 1 and not (copying[0] == number and copying[1] > now)
            for size, duration in each.table if there and busy[1] <= now else ():
                able = [
                    one
                    for one in left
                    if one[0] == number
                    and each.arrivals[one[1]] <= now
                    and each.due[one[1]] >= now + duration
                ]
                for count in range(1, min(size, len(able)) + 1):
                    for chosen in combinations(able, count):
                        rest = left - set(chosen)
                        after = most(now, (number, now + duration), copying, held, rest)
                        found = max(found, count + after)
            if not held >> number & 1 and copying[1] <= now:
                others = [one for one in range(len(lanes)) if held >> one & 1]
                stay = [one for one in others if one == busy[0] and busy[1] > now]
                for gone in range(len(others) + 1):
                    for leaving in combinations([one for one in others if one not in stay], gone):
                        kept = [one for one in others if one not in leaving]
                        if sum(lanes[one].pages for one in kept) + each.pages <= pages:
                            after = sum(1 << one for one in (*kept, number))
                            found = max(found, most(now, busy, (number, now + each.load), after, left))
        return found

    first = sum(1 << number for number, each in enumerate(lanes) if each.held)
    left = frozenset((number, one) for number, each in enumerate(lanes) for one in range(len(each.due)))
    return most(0, (-1, 0), (-1, 0), first, left)


lanes_of_few = st.lists(
    st.builds(
        lane,
        st.lists(st.integers(0, 6), min_size=1, max_size=2),
        st.integers(2, 7),
        st.sampled_from([{1: 2, 2: 3}, {1: 1, 2: 4}, {1: 3}]),
        st.integers(1, 3),
        st.integers(1, 2),
        st.just(False),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=60)
@given(lanes_of_few, st.integers(2, 3), st.integers(0, 2))
def test_no_schedule_is_better_where_memory_is_short(lanes: list[Lane], pages: int, first: int) -> None:
    if first < len(lanes):
        lanes[first] = msgspec.structs.replace(lanes[first], held=True)
    best = every_short_schedule(lanes, pages)
    assert best_short(lanes, pages) == Proven(best, best)
    narrow = best_short(lanes, pages, 0, 2)
    assert narrow.found <= best <= narrow.most


def test_a_model_is_loaded_before_its_requests_come() -> None:
    here, other = lane([0], 2, {1: 2}, 5, 1, True), lane([6], 2, {1: 2}, 4, 1, False)
    assert best_short([here, other], 1) == Proven(2, 2)
    slow = msgspec.structs.replace(other, load=5)
    assert best_short([here, slow], 1) == Proven(1, 1), "the one that is held can leave at 2 at the earliest"


@pytest.mark.skipif(not PROFILES.exists(), reason=f"there is no table of profiles at {PROFILES}")
def test_the_command_knows_memory_that_is_short() -> None:
    arguments = ["--models", "2", "--seconds", "0.05", "--seeds", "1", "--memory", "0.5"]
    found = limit.limit_of(PROFILES, 2, 1, 1.0, 0.05, 1, 0.5)
    assert found.bound + 1e-6 >= found.best.found == found.best.most >= found.served > 0
    assert found.best.found < limit.limit_of(PROFILES, 2, 1, 1.0, 0.05, 1).best.found
    result = CliRunner().invoke(_app(), [*arguments, "--profiles", str(PROFILES)])
    assert f" {found.best.found} " in result.output
    refused = CliRunner().invoke(_app(), [*arguments, "--devices", "2", "--profiles", str(PROFILES)])
    assert "leave --devices out" in refused.output


def _app() -> typer.Typer:
    made = typer.Typer()
    made.command()(limit.main)
    return made
