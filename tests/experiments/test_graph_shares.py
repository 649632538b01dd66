"""What the comparison of graphs and of clients that call step after step computes for itself."""

from __future__ import annotations

import pytest

from mainspring.experiments.graph_shares import DEVICES, GRAPHS, capacity, longest_ms, play, rows_needed


def test_rows_capacity_and_the_longest_path_follow_from_the_steps() -> None:
    assert rows_needed(GRAPHS["text"]) == {"a": 1.0, "b": 3.5, "c": 3.5}
    assert rows_needed(GRAPHS["fork"]) == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert capacity(GRAPHS["vote"]) == pytest.approx(DEVICES * 1e3 / (5.0 + 1.75 + 3.5))
    assert [longest_ms(GRAPHS[name]) for name in ("chain", "fork", "vote")] == [16.0, 13.0, 8.0]


def test_at_a_small_load_each_way_answers_all_in_time() -> None:
    found = [play("cascade", 0.1, way, 0.3, 1) for way in ("apart", "latest")]
    assert [each.goodput for each in found] == [1.0, 1.0]
    assert all(each.in_vain < 0.5 for each in found)
