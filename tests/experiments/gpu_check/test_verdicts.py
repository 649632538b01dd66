"""What is judged, and what of it makes the whole good."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mainspring.experiments.gpu_check.verdicts import (
    State,
    Verdict,
    as_rehearsed,
    at_least,
    at_most,
    failed,
    good,
    markdown,
    not_run,
    summary,
    table,
    told,
)

MET, MISSED = at_least("a", 0.95, 0.95), at_most("b", 2.5, 2, "%", "of many")


@pytest.mark.parametrize(
    ("verdicts", "is_good"),
    [
        ([MET], True),
        ([MET, told("x", "1"), not_run("y", "no provider")], True),
        ([MET, MISSED], False),
        ([MET, failed("z", "it broke")], False),
        ([not_run("y", "no provider")], False),
        ([as_rehearsed(MET), as_rehearsed(MISSED)], True),
        ([as_rehearsed(MET), as_rehearsed(failed("z", "it broke"))], False),
        ([], False),
    ],
)
def test_the_whole_is_good_if_something_was_met_and_nothing_missed(
    verdicts: list[Verdict], is_good: bool
) -> None:
    assert good(verdicts) is is_good


def test_a_rehearsal_judges_nothing() -> None:
    lines = [MET, MISSED, failed("z", "it broke"), not_run("y", "no provider"), told("x", "1")]
    found = [as_rehearsed(line) for line in lines]
    assert [line.state for line in found[:2]] == [State.REHEARSED] * 2
    assert found[2:] == lines[2:]
    assert summary(found) == "0 met, 0 missed, 1 failed, 1 not run, 2 rehearsed"


def test_summary_and_tables_name_every_line() -> None:
    verdicts = [
        MET,
        MISSED,
        failed("z", "it\n  broke: set [worker] pages"),
        not_run("y", "no provider"),
        told("x", "1 ms"),
    ]
    assert summary(verdicts) == "1 met, 1 missed, 1 failed, 1 not run"
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(table("checks", verdicts))
    text = console.export_text()
    for line in (text, markdown(verdicts)):
        for part in (
            "<= 2 %",
            "MISSED",
            "of many",
            "it broke: set [worker] pages",
            "not run",
            "no provider",
            "1 ms",
        ):
            assert part in line
    assert len(markdown(verdicts).splitlines()) == 2 + len(verdicts)
