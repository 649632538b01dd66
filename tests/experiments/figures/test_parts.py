"""Profiles, stages, comparison and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.bench.report import this_machine
from mainspring.experiments.figures import report as tables
from mainspring.experiments.figures.experiment import FigureReport
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import Fact
from mainspring.experiments.figures.profiles import (
    ProfilesMissing,
    read_models,
    resnet50_table,
    varieties_table,
)
from mainspring.experiments.figures.report import Line
from mainspring.telemetry.report import write_json


def test_without_a_table_resnet50_is_the_papers(
    tmp_path: Path, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_models(resnet50_table(tmp_path / "none.csv"), 1) == read_models(resnet50_table(profiles), 1)
    assert "--profiles" in capsys.readouterr().out
    with pytest.raises(ProfilesMissing, match="--profiles"):
        varieties_table(tmp_path / "none.csv")


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no policy 'clokwork'"):
        Options(policies=("clokwork",)).chosen()


def test_reports_are_printed_as_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = Line(name="goodput", unit="r/s", ours={"edf": 7.25}, paper=Fact(8, "r/s", "section 6.1"))
    report = FigureReport(
        name="one",
        title="Figure 1",
        form="live, short",
        notes=["A note."],
        machine=this_machine(),
        took_s=3.5,
        lines=[line],
        rows=[],
    )
    write_json(tmp_path / "one.json", report)
    tables.main(tmp_path)
    text = capsys.readouterr().out
    assert "## Figure 1" in text
    assert "| goodput | 8 r/s | 7.25 r/s |" in text
    assert "A note." in text
    (tmp_path / "one.json").write_text('{"name": 1}', encoding="utf-8")
    with pytest.raises(ValueError, match="is not a report of an experiment"):
        tables.main(tmp_path)
    with pytest.raises(SystemExit, match="make experiments"):
        tables.main(tmp_path / "empty")
