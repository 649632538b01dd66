"""What a message was held, from two clocks that know nothing of each other."""

from __future__ import annotations

import random

from mainspring.messages.delays import Delays

SECOND = 1_000_000_000
OFFSET = -7_000 * SECOND


def test_what_is_held_shows_beyond_the_fastest_message() -> None:
    delays = Delays()
    assert delays.held_ns(5, OFFSET + 105) == 0
    assert delays.held_ns(1_000, OFFSET + 1_000 + 350) == 250
    assert delays.held_ns(2_000, OFFSET + 2_000 + 60) == 0, "a faster one is the new measure"
    assert delays.held_ns(3_000, OFFSET + 3_000 + 100) == 40


def test_it_is_never_negative_and_exact_once_the_fastest_has_come() -> None:
    random_ = random.Random(4)
    delays, sent_ns, arrived_ns = Delays(), 0, OFFSET
    delays.held_ns(0, OFFSET + 50)
    for _ in range(2_000):
        sent_ns += random_.randrange(1_000)
        held_ns = random_.choice([0, 10, 3_000, 1_000_000])
        arrived_ns = max(arrived_ns, OFFSET + sent_ns + 50 + held_ns)
        assert delays.held_ns(sent_ns, arrived_ns) == arrived_ns - OFFSET - sent_ns - 50


def test_a_clock_that_drifts_does_not_add_up() -> None:
    delays = Delays()
    most_ns = 0
    for step in range(3_600):
        sent_ns = step * SECOND
        most_ns = max(most_ns, delays.held_ns(sent_ns, sent_ns + sent_ns // 20_000))
    assert most_ns <= 30 * SECOND // 20_000, "that of the window alone, after an hour"


def test_a_stream_that_was_silent_for_long_begins_again() -> None:
    delays = Delays()
    delays.held_ns(0, 10)
    assert delays.held_ns(3_600 * SECOND, 3_600 * SECOND + 5_000_000) == 0
