"""The table and the verdict."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.experiments.wild.__main__ import Missing, Report, is_bad, markdown, report_of, summary, write
from mainspring.experiments.wild.trial import FAILED, REFUSED, SERVED, SKIPPED, WRONG, Row

ROWS = [
    Row("a", "one 1.0", SERVED, "batched", 16, requests=10, largest_difference=1e-6, spread=1.2),
    Row("b", "one 1.0", REFUSED, sentence="it has | a pipe\nand lines"),
    Row("c", "made", SERVED, "whole", requests=4, spread=4.0),
    Row("d", "made", SKIPPED, sentence="no answers"),
]


def test_what_was_skipped_counts_for_no_share() -> None:
    lines = summary(ROWS)
    assert "packages: 1 of 2 served (50%)" in lines
    assert "made: 1 of 1 served (100%)" in lines
    assert "all: 2 of 3 served (67%)" in lines
    assert "served: 1 batched, 1 whole, erratic" in lines
    assert "wrong: 0, failed: 0, refused: 1, skipped: 1" in lines


def test_only_wrong_and_missing_answers_are_bad() -> None:
    bad = {status: is_bad(Row("a", "g", status)) for status in (SERVED, REFUSED, SKIPPED, WRONG, FAILED)}
    assert bad == {SERVED: False, REFUSED: False, SKIPPED: False, WRONG: True, FAILED: True}


def test_the_page_has_a_line_for_each_file_and_the_json_all(tmp_path: Path) -> None:
    report = report_of(ROWS, [Missing("gone", "no wheel")])
    page = markdown(report)
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert len(table) == 2 + len(ROWS)
    assert "it has \\| a pipe and lines" in page
    assert "* not to be had: gone: no wheel" in page
    write(report, tmp_path)
    assert msgspec.json.decode((tmp_path / "wild.json").read_bytes(), type=Report) == report
