"""An estimate all of whose samples are too long for what is asked: it goes back to its seed."""

from __future__ import annotations

import random

from mainspring.cluster.rolling import PATIENCE, SAMPLES, STALE_NS, Rolling
from tests.fuzz import seeded

MS = 1_000_000
SEED_MS = 2
FIRST_NS = STALE_NS << PATIENCE


def slow(durations_ms: list[int]) -> Rolling:
    """Seeded with 2 ms, then measured to be so long at the instant 0."""
    rolling = Rolling(SEED_MS * MS)
    for duration_ms in durations_ms:
        rolling.add(0, duration_ms * MS)
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
