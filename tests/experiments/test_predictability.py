"""Figure 2: that every run is counted, that tails are tails, and that threads really run together."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from mainspring.experiments.figures.report import read_report
from mainspring.experiments.predictability import __main__ as command
from mainspring.experiments.predictability.__main__ import LatencyReport
from mainspring.experiments.predictability.concurrent import run_together
from tests.patience import PATIENCE_S


def test_threads_run_at_the_same_time() -> None:
    """Each waits for the others inside its run, so one after the other would never end."""
    together = threading.Barrier(3)

    def run() -> None:
        together.wait(PATIENCE_S)

    latencies, took_s = run_together([run] * 3, 0.0)
    assert [len(found) for found in latencies] == [1, 1, 1]
    assert took_s > 0


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.main)
    return app


def test_the_whole_experiment_on_this_machines_processor(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["--model", "digits", "--runs", "120", "--levels", "1,3", "--seconds", "0.1", "--no-realtime"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode((tmp_path / "figure2.json").read_bytes(), type=LatencyReport)
    assert [(series.name, series.runs) for series in report.isolated] == [("device", 120), ("cpu", 120)]
    assert all(0 < series.percentiles_ms["50"] <= series.percentiles_ms["100"] for series in report.isolated)
    assert [found.concurrency for found in report.levels] == [1, 3]
    assert all(found.rate > 0 and found.latency.runs > 0 for found in report.levels)
    assert Image.open(tmp_path / "figure2.png").width > 1000
    assert "| 2a: 50th percentile |" in read_report(tmp_path / "figure2.json").text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--levels", "0,2"], "not numbers from 1 to 64"),
        (["--levels", "two"], "not numbers from 1 to 64"),
        (["--device", "gpu"], "neither cpu nor cuda:N"),
    ],
)
def test_what_can_not_be_is_refused(
    app: typer.Typer, tmp_path: Path, arguments: list[str], says: str
) -> None:
    given = ["--model", "digits", "--output", str(tmp_path), *arguments]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)
