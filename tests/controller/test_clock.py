"""A peer's clock: every estimate against the truth, over links that delay each message at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.controller.clock import MAX_RATE, Fit, Line, PeerClock, Range
from mainspring.controller.peer_lifecycle import EXCHANGES_A_BEAT, PRECISE_SAMPLES

US, MS, S = 10**3, 10**6, 10**9
DELAYS = st.integers(0, 10**9)
ROUNDING_NS = 5 * US
"""What nanoseconds of rounding may amount to when lines through near points are drawn out."""
OFFSETS = st.integers(-(10**15), 10**15)


def sample(clock: PeerClock, offset_ns: int, sent_ns: int, out_ns: int, held_ns: int, back_ns: int) -> int:
    """Play one exchange with a peer whose clock has this offset and the controller's rate."""
    received_ns = sent_ns + out_ns + offset_ns
    return clock.add(sent_ns, received_ns, received_ns + held_ns, sent_ns + out_ns + held_ns + back_ns)


class Played:
    """A controller and a peer: when each exchange ends, what the clock says, and what is so."""

    def __init__(self, seed: int, out_ns: int, back_ns: int, rate: float, queueing_ns: int = 2 * MS) -> None:
        self.draw = random.Random(seed)
        self.clock = PeerClock()
        self.out_ns, self.back_ns = out_ns, back_ns
        self.queueing_ns = queueing_ns
        self.rate = rate
        self.offset_ns = float(self.draw.randrange(-(10**15), 10**15))
        """At ``now_ns``."""
        self.now_ns = self._beat_ns = 10**12
        self.stepped_ns: list[int] = []
        """What `PeerClock.add` has told of steps."""

    def pass_time(self, until_ns: int) -> None:
        """Let the peer's clock run until an instant of the controller's."""
        self.offset_ns += self.rate * (until_ns - self.now_ns)
        self.now_ns = until_ns

    def exchange(self) -> None:
        """Ping the peer when the controller would, and take its pong in."""
        samples = self.clock.samples
        if samples >= 8 and not (samples < PRECISE_SAMPLES and samples % EXCHANGES_A_BEAT):
            self._beat_ns = max(self._beat_ns + 100 * MS, self.now_ns)
            self.pass_time(self._beat_ns)
        sent_ns = self.now_ns
        self.pass_time(self.now_ns + self.out_ns + self._queue_ns())
        received_ns = round(self.now_ns + self.offset_ns)
        self.pass_time(self.now_ns + self.draw.randrange(50 * US))
        left_ns = round(self.now_ns + self.offset_ns)
        self.pass_time(self.now_ns + self.back_ns + self._queue_ns())
        stepped_ns = self.clock.add(sent_ns, received_ns, left_ns, self.now_ns)
        if stepped_ns:
            self.stepped_ns.append(stepped_ns)

    def exchanges(self, seconds: float) -> Iterator[None]:
        """Yield after each exchange of the next seconds."""
        until_ns = self.now_ns + round(seconds * S)
        while self.now_ns < until_ns:
            self.exchange()
            yield

    @property
    def error_ns(self) -> float:
        """By how much the clock is wrong now."""
        return abs(self.clock.offset_ns(self.now_ns) - self.offset_ns)

    def _queue_ns(self) -> int:
        return self.draw.randrange(self.queueing_ns + 1)


def exponential(played: Played) -> Callable[[], int]:
    """Return queueing that is short most of the time."""
    return lambda: min(2 * MS, int(played.draw.expovariate(1 / (300 * US))))


@pytest.mark.parametrize("rate", [-1e-4, 3e-6, 1e-4])
def test_the_offset_is_within_half_the_least_round_trip_and_50_us_from_ten_seconds_on(rate: float) -> None:
    beyond_ns: list[float] = []
    for seed in range(20):
        for out_us, back_us in ((50, 50), (200, 20), (20, 400)):
            played = Played(seed, out_us * US, back_us * US, rate)
            if seed % 4 == 3:
                played._queue_ns = exponential(played)  # type: ignore[method-assign]
            for _ in played.exchanges(30):
                assert played.error_ns <= played.clock.error_ns(played.now_ns) + 2, "the bound is wrong"
                if played.now_ns - 10**12 >= 10 * S:
                    beyond_ns.append(played.error_ns - (out_us + back_us) * US / 2)
            assert played.clock.steps == 0
            assert abs(played.clock.rate - rate) < 2e-5
    beyond_ns.sort()
    assert beyond_ns[int(len(beyond_ns) * 0.999)] <= 50 * US, f"at most {beyond_ns[-1]} ns"


def test_the_windows_overlap_so_that_the_offset_stays_good_for_minutes() -> None:
    played = Played(5, 100 * US, 30 * US, 1e-4)
    for _ in played.exchanges(600):
        assert played.error_ns <= played.clock.error_ns(played.now_ns) + 2
        if played.now_ns - 10**12 >= 10 * S:
            assert played.error_ns <= 65 * US + 50 * US
    assert played.clock.steps == 0
    assert abs(played.clock.rate - 1e-4) < 2e-6


@pytest.mark.parametrize("step_ns", [-3600 * S, -20 * MS, -5 * MS, 5 * MS, 20 * MS, 3600 * S])
def test_a_step_is_noticed_within_a_second_and_the_clock_recovers(step_ns: int) -> None:
    for seed in range(25):
        played = Played(seed, 100 * US, 60 * US, (-1) ** seed * 1e-4)
        for _ in played.exchanges(12 + played.draw.random()):
            pass
        assert not played.stepped_ns
        played.offset_ns += step_ns
        stepped_at_ns = played.now_ns
        while not played.stepped_ns:
            played.exchange()
        assert played.now_ns - stepped_at_ns <= S
        assert abs(played.stepped_ns[0] - step_ns) < 5 * MS
        for _ in played.exchanges(10):
            assert played.error_ns <= played.clock.error_ns(played.now_ns) + 2
        assert len(played.stepped_ns) == 1
        assert played.error_ns <= 80 * US + 150 * US


@pytest.mark.parametrize("rate", [-2e-4, 5e-5])
def test_a_change_of_the_rate_is_no_step_and_is_followed(rate: float) -> None:
    played = Played(3, 100 * US, 100 * US, 1e-5, queueing_ns=300 * US)
    for _ in played.exchanges(70):
        pass
    played.rate = rate
    for _ in played.exchanges(30):
        # What contradicts the lines is at most a full round trip away from the truth.
        assert played.error_ns <= 200 * US + 300 * US
    assert not played.stepped_ns
    assert abs(played.clock.rate - rate) < 1e-5
    assert played.error_ns <= 100 * US + 50 * US


def ranges_of(seed: int, wobble_ns: int, narrowest_ns: int = 0) -> list[Range]:
    """Return ranges through which one line passes, or nearly."""
    draw = random.Random(seed)
    rate = draw.uniform(-2e-4, 2e-4)
    found, at_ns = [], 1000
    for _ in range(draw.randrange(2, 40)):
        at_ns += draw.randrange(MS, 200 * MS)
        middle_ns = round(rate * at_ns) + draw.randrange(-wobble_ns, wobble_ns + 1)
        low_ns, high_ns = (narrowest_ns + draw.choice((0, draw.randrange(2 * MS))) for _ in range(2))
        found.append(Range(at_ns, middle_ns - low_ns, middle_ns + high_ns))
    return found


def outermost(ranges: list[Range], at_ns: int) -> tuple[float, float]:
    """Return the least and the greatest offset at a later instant by comparing all pairs."""
    most = min(each.high_ns + MAX_RATE * (at_ns - each.at_ns) for each in ranges)
    least = max(each.low_ns - MAX_RATE * (at_ns - each.at_ns) for each in ranges)
    for first in ranges:
        for later in ranges:
            if first.at_ns < later.at_ns:
                part = Fraction(at_ns - first.at_ns, later.at_ns - first.at_ns)
                most = min(most, first.low_ns + float(part * (later.high_ns - first.low_ns)))
                least = max(least, first.high_ns + float(part * (later.low_ns - first.high_ns)))
    return least, most


@settings(max_examples=300)
@given(st.integers(0, 10**9), st.sampled_from([0, 10 * US, 300 * US]))
def test_the_outermost_lines_are_those_that_comparing_all_pairs_finds(seed: int, wobble_ns: int) -> None:
    ranges = ranges_of(seed, wobble_ns)
    fit = Fit(ranges[0])
    for count, each in enumerate(ranges[1:], 1):
        least, most = outermost(ranges[:count], each.at_ns)
        assert abs(fit.rising.at(each.at_ns) - most) < ROUNDING_NS
        assert abs(fit.falling.at(each.at_ns) - least) < ROUNDING_NS
        outside_ns = max(each.low_ns - most, 0) - max(least - each.high_ns, 0)
        assert abs(fit.outside_ns(each) - outside_ns) < ROUNDING_NS
        if fit.outside_ns(each):
            return
        fit.add(each)


@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_the_estimate_is_in_the_middle_of_the_widest_corridor(seed: int) -> None:
    ranges = ranges_of(seed, 0, narrowest_ns=US)
    fit = Fit(ranges[0])
    for each in ranges[1:]:
        fit.add(each)
        fit.find_corridor()

    def width_ns(rate: float) -> float:
        highs = min(each.high_ns - rate * each.at_ns for each in ranges)
        return highs - max(each.low_ns - rate * each.at_ns for each in ranges)

    middle, last_ns = fit.middle, ranges[-1].at_ns
    assert fit.falling.rate <= middle.rate <= fit.rising.rate
    if middle.at_ns == last_ns:
        return
    assert abs(width_ns(middle.rate) - fit.width_ns) < 50
    for first, later in pairwise(ranges):
        for one, other in ((first.low_ns, later.low_ns), (first.high_ns, later.high_ns)):
            rate = (other - one) / (later.at_ns - first.at_ns)
            if fit.falling.rate <= rate <= fit.rising.rate:
                assert width_ns(rate) <= fit.width_ns + 50
    assert fit.falling.at(last_ns) - 50 <= middle.at(last_ns) <= fit.rising.at(last_ns) + 50


@given(OFFSETS, st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1, max_size=50))
def test_the_bound_holds_whatever_the_delays(offset_ns: int, delays: list[tuple[int, int, int]]) -> None:
    clock = PeerClock()
    for index, (out_ns, held_ns, back_ns) in enumerate(delays):
        assert sample(clock, offset_ns, index * 10**10, out_ns, held_ns, back_ns) == 0
        now_ns = index * 10**10 + out_ns + held_ns + back_ns
        assert abs(clock.offset_ns(now_ns) - offset_ns) <= clock.error_ns(now_ns) + 2
        assert abs(clock.offset_ns(now_ns + S) - offset_ns) <= clock.error_ns(now_ns + S) + 2


@given(OFFSETS, DELAYS, DELAYS, st.integers(-(2**62), 2**62))
def test_translation_there_and_back_is_exact_to_a_few_nanoseconds(
    offset_ns: int, out_ns: int, back_ns: int, instant_ns: int
) -> None:
    clock = PeerClock()
    sample(clock, offset_ns, 0, out_ns, 0, back_ns)
    assert abs(clock.to_controller(clock.to_peer(instant_ns)) - instant_ns) <= 2


def test_a_peer_that_is_ahead_has_a_positive_offset() -> None:
    clock = PeerClock()
    sample(clock, 5_000, 0, 100, 0, 100)
    assert clock.offset_ns(200) == 5_000
    assert clock.to_controller(6_000) == 1_000
    assert 200 <= clock.round_ns <= 202


def test_an_instant_that_is_yet_to_come_tells_of_a_step() -> None:
    clock = PeerClock()
    for index in range(20):
        sample(clock, -7 * S, index * 100 * MS, 50 * US, 0, 50 * US)
    now_ns = 2 * S
    assert clock.ahead_ns(now_ns, clock.to_peer(now_ns)) == 0
    assert clock.ahead_ns(now_ns, clock.to_peer(now_ns - S)) == 0
    assert 9 * MS < clock.ahead_ns(now_ns, clock.to_peer(now_ns) + 10 * MS) <= 10 * MS


def test_offsets_of_the_far_future_stay_near() -> None:
    clock = PeerClock()
    for index in range(20):
        sample(clock, index * 50 * US, index * S, 50 * US, 0, 50 * US)
    assert 4e-5 < clock.rate < 6e-5
    assert abs(clock.offset_ns(1 << 62)) < 2 * MS


@pytest.mark.parametrize(("received", "sent"), [(50, 40), (0, 201), (500, 900)])
def test_an_impossible_pong_is_refused_and_changes_nothing(received: int, sent: int) -> None:
    clock = PeerClock()
    clock.add(0, 60, 70, 100)
    before = (clock.offset_ns(100), clock.error_ns(100), clock.round_ns, clock.samples)
    with pytest.raises(ValueError, match="impossible"):
        clock.add(0, received, sent, 200)
    assert (clock.offset_ns(100), clock.error_ns(100), clock.round_ns, clock.samples) == before


def test_before_the_first_sample_clocks_are_taken_for_equal() -> None:
    clock = PeerClock()
    assert clock.offset_ns(5) == clock.error_ns(5) == 0
    assert clock.to_controller(77) == 77


def test_a_line_is_the_same_in_either_direction() -> None:
    line = Line(100, 5, 0.5)
    assert (line.at(100), line.at(110), line.at(90)) == (5, 10, 0)
