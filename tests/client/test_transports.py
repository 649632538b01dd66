"""A gateway that stands still is noticed in bounded time, and one that is only quiet stays."""

from __future__ import annotations

import random

from mainspring.client.transports import PATIENCE_NS, QUIET_NS, Heartbeat

MS = 1_000_000


def test_a_silent_gateway_is_asked_and_then_given_up() -> None:
    beat = Heartbeat(0)
    assert not beat.due(QUIET_NS - 1)
    assert beat.next_ns() == QUIET_NS
    assert beat.due(QUIET_NS)
    beat.asked(QUIET_NS)
    assert not beat.due(QUIET_NS + 1), "it is asked once"
    assert beat.next_ns() == QUIET_NS + PATIENCE_NS
    assert not beat.silent(QUIET_NS + PATIENCE_NS - 1)
    assert beat.silent(QUIET_NS + PATIENCE_NS)
    beat.heard(QUIET_NS + PATIENCE_NS)
    assert not beat.silent(1 << 60)


def test_one_that_answers_is_never_given_up_and_one_that_stops_is_soon() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        beat, now_ns, answers_ns = Heartbeat(0), 0, None
        stops_ns = rng.randrange(5_000 * MS, 60_000 * MS)
        last_ns = 0
        while not beat.silent(now_ns):
            assert now_ns < stops_ns + QUIET_NS + PATIENCE_NS, "it is noticed in time"
            if beat.due(now_ns):
                beat.asked(now_ns)
                answers_ns = now_ns + rng.randrange(PATIENCE_NS)
            if answers_ns is not None and answers_ns <= now_ns and answers_ns < stops_ns:
                beat.heard(now_ns)
                answers_ns, last_ns = None, now_ns
            elif now_ns < stops_ns and rng.random() < 0.1:
                beat.heard(now_ns)
                last_ns = now_ns
            pending = [] if answers_ns is None or answers_ns >= stops_ns else [answers_ns]
            now_ns = max(now_ns + 1, min(beat.next_ns(), *pending, now_ns + rng.randrange(1, 3_000) * MS))
        assert now_ns >= stops_ns, "it still answered"
        assert now_ns - last_ns >= PATIENCE_NS
