"""Figure 9 of Clipper as `make selection` plays it, short."""

from __future__ import annotations

from mainspring.experiments.selection import accuracy, stragglers


def test_members_that_are_missing_cost_accuracy_and_no_deadline() -> None:
    figures = stragglers((1, 4), 0.1)
    assert [each.name for each in figures][-1] == "4 forests at 1.5, begun in vain"
    assert all(each.met for each in figures), figures


def test_more_forests_are_right_more_often() -> None:
    assert accuracy([8] * 200, 8, 1) > accuracy([1] * 200, 8, 1) > 0.2
