"""Profiles, stages, comparison and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.bench.report import this_machine
from mainspring.experiments.figures import tables
from mainspring.experiments.figures.comparison import Line, markdown, number
from mainspring.experiments.figures.experiment import FigureReport
from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import Fact
from mainspring.experiments.figures.profiles import (
    ProfilesMissing,
    model_names,
    read_models,
    resnet50_table,
    varieties_table,
)
from mainspring.experiments.figures.stages import MULTIPLIERS, nearest_stage, satisfied_from
from mainspring.telemetry.report import write_json


def test_the_tuned_rows_are_left_out(profiles: Path) -> None:
    table = varieties_table(profiles)
    assert model_names(table, 2) == ["resnet50_v2-1", "resnet50_v2-2", "resnet18_v1-1", "resnet18_v1-2"]
    assert sorted(spec.name for spec in read_models(table, 2)) == sorted(model_names(table, 2))


def test_tensors_are_as_small_as_asked_for(profiles: Path) -> None:
    model = read_models(resnet50_table(profiles, io_kb=4), 1)[0]
    assert model.inputs[0].shape == (1_000,)
    assert read_models(resnet50_table(profiles), 1)[0].inputs[0].shape == (150_500,)


def test_without_a_table_resnet50_is_the_papers(
    tmp_path: Path, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_models(resnet50_table(tmp_path / "none.csv"), 1) == read_models(resnet50_table(profiles), 1)
    assert "--profiles" in capsys.readouterr().out
    with pytest.raises(ProfilesMissing, match="--profiles"):
        varieties_table(tmp_path / "none.csv")


def test_the_slo_rises_by_half_to_a_quarter_of_a_second() -> None:
    assert len(MULTIPLIERS) == 12
    assert 2.9 * MULTIPLIERS[-1] == pytest.approx(250, abs=1)
    assert [round(MULTIPLIERS[nearest_stage(one)], 1) for one in (3.4, 7.6, 11.4, 25.6)] == [
        3.4,
        7.6,
        11.4,
        25.6,
    ]


def test_satisfied_means_from_there_on() -> None:
    shares = [0.0, 1.0, 0.5, 0.999, *[1.0] * 8]
    assert satisfied_from(shares) == MULTIPLIERS[3]
    assert satisfied_from([*shares[:-1], 0.9]) is None
    assert satisfied_from([*shares[:-1], None]) is None


def test_numbers_read_well() -> None:
    assert number(4860.61, "r/s") == "4,861 r/s"
    assert number(99.9967, "%") == "99.997 %"
    assert number(6.28, "ms") == "6.28 ms"
    assert number(None, "ms") == ""
    line = Line(name="goodput", unit="r/s", ours={"a": 1.5}, paper=Fact(800, "r/s", "6.1", approximate=True))
    assert markdown([line]).splitlines() == [
        "|  | paper | a |",
        "| --- | --- | --- |",
        "| goodput | ~800 r/s | 1.5 r/s |",
    ]


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no policy 'clokwork'"):
        Options(policies=("clokwork",)).chosen()


def test_a_live_run_has_a_sixth_of_the_devices_and_at_least_one() -> None:
    live = Options(live=True)
    assert (live.count(12), live.count(1), live.share(2_400), live.io_kb) == (2, 1, 400, 4)
    assert (Options().count(12), Options().share(2_400), Options().io_kb) == (12, 2_400, None)


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
    with pytest.raises(ValueError, match="is no report of an experiment"):
        tables.main(tmp_path)
    with pytest.raises(SystemExit, match="make experiments"):
        tables.main(tmp_path / "empty")
