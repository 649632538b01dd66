"""What the way back takes, learnt from answers."""

from __future__ import annotations

from mainspring.client.requests import Paths

MS = 1_000_000
OFFSET = 123_456_789_000
SLO = 1_000 * MS


def answers(paths: Paths, took_ns: list[int], size: int = 4_000, model: str | None = "m") -> int:
    """Have answers come back, one each 10 ms; return the instant of the last."""
    now_ns = 0
    for number, each in enumerate(took_ns):
        now_ns = number * 10 * MS + each
        paths.came_back(number * 10 * MS + OFFSET, now_ns, size, model)
    return now_ns


def test_nothing_is_expected_before_anything_is_known() -> None:
    assert Paths().back_ns(0, "m", SLO) == 0


def test_what_answers_are_held_is_expected_with_room_for_its_spread() -> None:
    paths = Paths()
    paths.round_trip(2 * MS)
    now_ns = answers(paths, [1 * MS] + [6 * MS] * 200)
    assert 6 * MS <= paths.back_ns(now_ns, "m", SLO) < 7 * MS
    calm = paths.back_ns(now_ns, "m", SLO)
    spread = Paths()
    now_ns = answers(spread, [1 * MS, *[3 * MS, 9 * MS] * 100])
    assert spread.back_ns(now_ns, "m", SLO) > calm, "the mean is the same"


def test_sizes_are_apart_and_an_unknown_model_gets_the_slowest() -> None:
    paths = Paths()
    answers(paths, [0] + [1 * MS] * 100, 100, "small")
    now_ns = answers(paths, [0] + [20 * MS] * 100, 1 << 20, "large")
    small, large = (paths.back_ns(now_ns, model, SLO) for model in ("small", "large"))
    assert small < 5 * MS
    assert large >= 20 * MS
    assert paths.back_ns(now_ns, "never seen", SLO) == large
    assert paths.slowest_ns(now_ns) == large


def test_one_bad_moment_takes_a_share_of_an_slo_and_is_forgotten() -> None:
    paths = Paths()
    now_ns = answers(paths, [0, 5_000 * MS])
    assert paths.back_ns(now_ns, "m", 100 * MS) == 25 * MS
    assert paths.back_ns(now_ns + 60_000 * MS, "m", 100 * MS) < 1 * MS


def test_half_of_the_fastest_round_trip_is_one_way() -> None:
    paths = Paths()
    paths.round_trip(40 * MS)
    paths.round_trip(30 * MS)
    paths.round_trip(35 * MS)
    assert paths.one_way_ns == 15 * MS
