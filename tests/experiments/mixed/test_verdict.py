"""The mixed cluster's figures and what is said of those that fall short."""

from __future__ import annotations

import pytest

from mainspring.experiments.mixed.fleet import ERRATIC, FIXED, STREAM, Judged
from mainspring.experiments.mixed.offering import STREAMS, Tally, figures, models_table, shortfalls

WELL = Judged(0, "", 0, STREAMS)


def tallies(**of_fixed: object) -> list[Tally]:
    """Three models with a thousand requests each, all in time but for what is said of the first."""
    fixed = {"sent": 1_000, "in_time": 1_000, **of_fixed}
    return [
        Tally("even", FIXED, **fixed),  # type: ignore[arg-type]
        Tally("odd", ERRATIC, sent=1_000, in_time=1_000),
        Tally("stream", STREAM, sent=1_000, in_time=1_000),
    ]


def test_a_cluster_that_does_all_well_reaches_every_target() -> None:
    rows = figures(tallies(), WELL, 0, 5.0)
    assert not shortfalls(rows)
    assert {row.name: row.value for row in rows}["goodput"] == 100


@pytest.mark.parametrize(
    ("of_fixed", "judged", "twice", "said"),
    [
        ({"in_time": 900}, WELL, 0, "goodput: 96.67 %, where at least 99 were to be"),
        ({"late": 3}, WELL, 0, "late, of models that are not erratic: 0.15 %, where at most 0.1 were to be"),
        ({"lost": 1}, WELL, 0, "requests without a reply: 1 requests"),
        ({}, WELL, 1, "second and unasked replies: 1 replies"),
        ({"wrong": 1, "problem": "output 'y'"}, WELL, 0, "where at most 0 were to be (even: output 'y')"),
        ({}, Judged(2, "stream-3, request 4", 0, STREAMS), 0, "wrong answers of streams: 2 answers"),
        ({}, Judged(0, "", 1, STREAMS), 0, "streams whose state was lost: 1 streams"),
        ({}, Judged(0, "", 0, STREAMS - 1), 0, "streams that went on after the kill: 31 streams"),
    ],
)
def test_what_falls_short_is_said(of_fixed: dict[str, object], judged: Judged, twice: int, said: str) -> None:
    (found,) = shortfalls(figures(tallies(**of_fixed), judged, twice, 5.0))
    assert said in found


def test_what_an_erratic_model_is_late_is_told_apart() -> None:
    rows = tallies()
    rows[1].late = 500
    assert not shortfalls(figures(rows, WELL, 0, 5.0))


def test_what_the_kill_cost_is_told_apart() -> None:
    rows = tallies(missed_s=[1.0, 5.5, 5.6, 5.7, 9.0])
    found = {row.name: row.value for row in figures(rows, WELL, 0, 5.0)}
    assert found["not in time apart from the kill"] == pytest.approx(100 / 3_000)
    assert found["not in time in the worst second"] == 3


def test_a_model_without_an_answer_has_a_row() -> None:
    (row,) = [models_table([Tally("m", FIXED, sent=2, rejected={"no_worker": 2})])]
    assert row.row_count == 1
