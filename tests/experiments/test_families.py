"""What the experiment on families computes for itself, and a short crowd."""

from __future__ import annotations

import pytest

from mainspring.experiments.families import BEST, ROW_MS, SCORES, crowd, play, possible


def test_what_is_possible_is_the_best_member_at_a_small_load_and_the_hull_under_overload() -> None:
    pytest.importorskip("scipy")
    assert possible(crowd(0.3, 4.0, 1, 1), 1) == pytest.approx(SCORES[BEST])
    gap_ms = ROW_MS[BEST] / 2.5
    part = (gap_ms - ROW_MS["resnet18"]) / (ROW_MS[BEST] - ROW_MS["resnet18"])
    mean = part * SCORES[BEST] + (1 - part) * SCORES["resnet18"]
    assert possible(crowd(2.5, 4.0, 1, 1), 1) == pytest.approx(mean, rel=0.01)


def test_a_crowd_is_answered_by_smaller_members_at_nearly_the_highest_score() -> None:
    pytest.importorskip("scipy")
    times_s = crowd(3.0, 0.5, 1, 1)
    family, alone = (play(times_s, 0.5, 1, only) for only in (False, True))
    assert family.in_time >= 0.99
    assert alone.in_time < 0.45
    assert family.total >= 0.97 * possible(times_s, 1)
