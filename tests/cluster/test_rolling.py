"""An estimate all of whose samples are too long for what is asked: it goes back to its seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.rolling import HIGHEST_RANK, OUTSTANDING_NS, PATIENCE, SAMPLES, STALE_NS, Rolling
from tests.fuzz import seeded

MS = 1_000_000
SEED_MS = 2
FIRST_NS = STALE_NS << PATIENCE


def slow(durations_ms: list[int]) -> Rolling:
    """Seeded with 2 ms, then measured to be so long one after the other, until the instant 0."""
    rolling = Rolling(SEED_MS * MS)
    now_ms = -sum(durations_ms)
    for duration_ms in durations_ms:
        now_ms += duration_ms
        rolling.add(now_ms * MS, duration_ms * MS)
    return rolling


def tried_ns(rolling: Rolling, from_ns: int, limit_ns: int) -> int:
    """The instant from which requests of a deadline are taken again, if they come every 10 ms."""
    now_ns = from_ns
    while rolling.doubt(now_ns) > limit_ns:
        now_ns += 10 * MS
        assert now_ns < from_ns + 100 * STALE_NS, "it is refused for ever"
    return now_ns


@seeded(20)
def test_samples_that_are_all_too_long_are_forgotten_in_the_end(seed: int) -> None:
    draws = random.Random(seed)
    rolling = slow([draws.randint(60, 300) for _ in range(draws.randint(SAMPLES, 30))])
    assert tried_ns(rolling, 0, 50 * MS) <= 4 * STALE_NS + FIRST_NS, "four doubts leave one sample"
    assert rolling.estimate_ns == SEED_MS * MS


def test_a_measurement_that_bears_it_out_makes_it_as_patient_as_at_first() -> None:
    rolling = slow([100] * SAMPLES)
    now_ns = tried_ns(rolling, 0, 50 * MS)
    assert now_ns == FIRST_NS
    rolling.add(now_ns, 3 * MS)
    for _ in range(SAMPLES):
        now_ns += 100 * MS
        rolling.add(now_ns, 100 * MS)
    assert tried_ns(rolling, now_ns, 50 * MS) == now_ns + FIRST_NS


def test_a_device_that_stays_slow_is_tried_ever_more_rarely() -> None:
    rolling = slow([100] * SAMPLES)
    now_ns, waits_s = 0, []
    for _ in range(7):
        again_ns = tried_ns(rolling, now_ns, 50 * MS)
        waits_s.append((again_ns - now_ns) // STALE_NS)
        now_ns = again_ns
        rolling.add(now_ns, 100 * MS)
    assert waits_s == [4, 8, 16, 32, 64, 64, 64]


def test_what_is_as_short_as_its_seed_goes_nowhere() -> None:
    rolling = slow([SEED_MS] * SAMPLES)
    assert rolling.doubt(100 * STALE_NS) == SEED_MS * MS
    assert rolling.state().samples == (SEED_MS * MS,) * SAMPLES


def test_one_that_was_restored_without_its_seed_keeps_what_it_has() -> None:
    """Logs of earlier releases do not say it."""
    state = slow([100] * SAMPLES).state()
    rolling = Rolling(0)
    rolling.restore(type(state)(*[getattr(state, name) for name in state.__struct_fields__[:7]]))
    assert [rolling.doubt(second * STALE_NS) for second in range(100)] == [100 * MS] * 100


usual = st.lists(st.integers(10, 30), min_size=0, max_size=30)
stands_still = st.integers(200, 60_000)
ranks = st.integers(1, HIGHEST_RANK)


def measured_so_far(rank: int, durations_ms: list[int]) -> tuple[Rolling, int]:
    """Seeded with 20 ms, then measured one after the other from the instant 0 on; return the last one's."""
    rolling, now_ns = Rolling(20 * MS, rank=rank), 0
    for duration_ms in durations_ms:
        now_ns += duration_ms * MS
        rolling.add(now_ns, duration_ms * MS)
    return rolling, now_ns


@given(ranks, usual, st.lists(stands_still, min_size=1, max_size=2), usual, st.booleans())
def test_what_stands_still_once_or_twice_moves_no_estimate(
    rank: int, before_ms: list[int], still_ms: list[int], after_ms: list[int], doubted: bool
) -> None:
    rolling, now_ns = measured_so_far(rank, before_ms)
    other, _ = measured_so_far(rank, before_ms)
    if doubted:
        now_ns += 2 * STALE_NS
        rolling.doubt(now_ns)
        other.doubt(now_ns)
    for duration_ms in still_ms:
        now_ns += duration_ms * MS
        assert rolling.stands_out(duration_ms * MS)
        assert rolling.add(now_ns, duration_ms * MS) == other.estimate_ns
    for duration_ms in after_ms:
        now_ns += duration_ms * MS
        assert rolling.add(now_ns, duration_ms * MS) == other.add(now_ns, duration_ms * MS)


@given(st.integers(1, 3), usual, stands_still)
def test_three_in_a_row_are_followed(rank: int, before_ms: list[int], slow_ms: int) -> None:
    rolling, now_ns = measured_so_far(rank, before_ms)
    for _ in range(3):
        now_ns += slow_ms * MS
        rolling.add(now_ns, slow_ms * MS)
    assert rolling.estimate_ns == slow_ms * MS


@given(st.lists(st.integers(0, 1_999), min_size=1, max_size=20))
def test_what_held_many_devices_up_at_one_time_counts_once(ends_ms: list[int]) -> None:
    rolling, now_ns = measured_so_far(3, [20] * 5)
    for end_ms in sorted(ends_ms):
        assert rolling.add(now_ns + (2_000 + end_ms) * MS, 2_000 * MS) == 20 * MS


@given(usual, stands_still)
def test_an_action_that_was_waited_for_in_vain_once_moves_nothing(before_ms: list[int], waited: int) -> None:
    rolling, now_ns = measured_so_far(3, before_ms)
    estimate_ns = rolling.estimate_ns
    now_ns += waited * MS
    assert rolling.give_up(now_ns, waited * MS) == estimate_ns
    assert rolling.give_up(now_ns + waited * MS, waited * MS) == waited * MS, "and twice in a row does"


def test_beside_a_seed_that_was_only_assumed_the_first_duration_counts() -> None:
    rolling = Rolling(20 * MS, known=False)
    assert rolling.add(0, 3_000 * MS) == 3_000 * MS
    assert not rolling.stands_out(3_000 * MS)


@pytest.mark.parametrize(("duration_ms", "stands_out"), [(49, False), (59, False), (61, True)])
def test_what_is_longer_by_little_is_no_outlier(duration_ms: int, stands_out: bool) -> None:
    assert OUTSTANDING_NS == 50 * MS
    assert Rolling(10 * MS).stands_out(duration_ms * MS) == stands_out


@given(ranks, st.lists(st.one_of(st.integers(10, 30), stands_still), max_size=20))
def test_one_that_was_restored_goes_on_alike(rank: int, durations_ms: list[int]) -> None:
    rolling, now_ns = measured_so_far(rank, durations_ms)
    other = Rolling(0, rank=rank)
    other.restore(rolling.state())
    for duration_ms in (500, 20, 3_000, 3_000, 3_000):
        now_ns += duration_ms * MS
        assert rolling.add(now_ns, duration_ms * MS) == other.add(now_ns, duration_ms * MS)
    assert rolling.state() == other.state()
