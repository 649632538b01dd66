"""Clock offsets from minimum one-way delays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.controller.clock import ClockOffset, SlidingMinimum

DELAYS = st.integers(0, 10**9)
OFFSETS = st.integers(-(10**15), 10**15)


def sample(clock: ClockOffset, offset_ns: int, sent_ns: int, out_ns: int, held_ns: int, back_ns: int) -> None:
    peer_received_ns = sent_ns + out_ns + offset_ns
    clock.add(sent_ns, peer_received_ns, peer_received_ns + held_ns, sent_ns + out_ns + held_ns + back_ns)


@given(st.lists(st.integers(), min_size=1, max_size=200), st.integers(1, 20))
def test_the_sliding_minimum_is_the_minimum_of_the_window(values: list[int], window: int) -> None:
    minimum = SlidingMinimum(window)
    for index, value in enumerate(values):
        minimum.add(value)
        assert minimum.value == min(values[max(0, index + 1 - window) : index + 1])


@given(OFFSETS, st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1, max_size=50))
def test_the_offset_is_wrong_by_at_most_half_the_minimum_round_trip(
    offset_ns: int, delays: list[tuple[int, int, int]]
) -> None:
    clock = ClockOffset()
    for index, (out_ns, held_ns, back_ns) in enumerate(delays):
        sample(clock, offset_ns, index * 10**10, out_ns, held_ns, back_ns)
    assert clock.min_rtt_ns == min(d[0] for d in delays) + min(d[2] for d in delays)
    assert abs(clock.offset_ns - offset_ns) <= clock.min_rtt_ns // 2 + 1


@given(OFFSETS, DELAYS, st.lists(st.tuples(DELAYS, DELAYS), max_size=20))
def test_one_quick_exchange_in_each_direction_is_enough(
    offset_ns: int, wire_ns: int, queueing: list[tuple[int, int]]
) -> None:
    clock = ClockOffset()
    for index, (out_ns, back_ns) in enumerate([*queueing, (0, 10**9), (10**9, 0)]):
        sample(clock, offset_ns, index * 10**10, wire_ns + out_ns, 5, wire_ns + back_ns)
    assert clock.offset_ns == offset_ns
    assert clock.min_rtt_ns == 2 * wire_ns


@given(OFFSETS, DELAYS, DELAYS, st.integers(-(2**62), 2**62))
def test_translation_there_and_back_is_exact(
    offset_ns: int, out_ns: int, back_ns: int, instant_ns: int
) -> None:
    clock = ClockOffset()
    sample(clock, offset_ns, 0, out_ns, 0, back_ns)
    assert clock.to_controller(instant_ns + clock.offset_ns) == instant_ns


def test_a_peer_that_is_ahead_has_a_positive_offset() -> None:
    clock = ClockOffset()
    sample(clock, 5_000, 0, 100, 0, 100)
    assert clock.offset_ns == 5_000
    assert clock.to_controller(6_000) == 1_000


def test_old_samples_leave_the_window() -> None:
    clock = ClockOffset(window=4)
    sample(clock, 1_000, 0, 10, 0, 10)
    for index in range(1, 5):
        sample(clock, 9_000, index * 10**6, 50, 0, 50)
    assert clock.offset_ns == 9_000
    assert clock.min_rtt_ns == 100


@pytest.mark.parametrize(("received", "sent"), [(50, 40), (0, 201), (500, 900)])
def test_an_impossible_pong_is_refused_and_changes_nothing(received: int, sent: int) -> None:
    clock = ClockOffset()
    clock.add(0, 60, 70, 100)
    before = (clock.offset_ns, clock.min_rtt_ns, clock.samples)
    with pytest.raises(ValueError, match="impossible"):
        clock.add(0, received, sent, 200)
    assert (clock.offset_ns, clock.min_rtt_ns, clock.samples) == before


def test_before_the_first_sample_clocks_are_taken_for_equal() -> None:
    clock = ClockOffset()
    assert clock.offset_ns == 0
    assert clock.to_controller(77) == 77
