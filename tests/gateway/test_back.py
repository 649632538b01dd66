"""What answers take to their clients, learnt for each way and size."""

from __future__ import annotations

from mainspring.gateway.back import HTTP, Back

MS = 1_000_000


def test_it_is_nothing_before_an_answer_was_seen_and_for_best_effort() -> None:
    back = Back()
    assert back.expected_ns(HTTP, 4_000, 100 * MS, 0) == 0
    back.took(HTTP, 4_000, 5 * MS, 0)
    assert back.expected_ns(HTTP, 4_000, None, 0) == 0
    assert back.expected_ns(HTTP, 4_000, 100 * MS, 0) >= 5 * MS


def test_ways_and_sizes_are_apart() -> None:
    back = Back()
    for _ in range(50):
        back.took(HTTP, 100, 1 * MS, 0)
        back.took(HTTP, 1 << 20, 8 * MS, 0)
        back.took(b"slow reader", 100, 90 * MS, 0)
    assert back.expected_ns(HTTP, 100, 1_000 * MS, 0) < 2 * MS
    assert 8 * MS <= back.expected_ns(HTTP, 1 << 20, 1_000 * MS, 0) < 10 * MS
    assert back.expected_ns(b"slow reader", 100, 1_000 * MS, 0) >= 90 * MS
    assert back.expected_ns(b"another", 100, 1_000 * MS, 0) == 0


def test_it_takes_a_part_of_an_slo_at_most_and_is_forgotten() -> None:
    back = Back()
    back.took(HTTP, 100, 500 * MS, 0)
    assert back.expected_ns(HTTP, 100, 80 * MS, 0) == 20 * MS
    assert back.expected_ns(HTTP, 100, 80 * MS, 60_000 * MS) < 1 * MS


def test_what_it_remembers_is_bounded() -> None:
    back = Back()
    for number in range(10_000):
        back.took(b"%d" % number, 100, MS, 0)
    assert len(back._estimates) <= 4_096
    assert back.expected_ns(b"9999", 100, 100 * MS, 0) > 0
