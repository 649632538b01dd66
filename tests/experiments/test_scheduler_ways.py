"""The scheduler's cost both ways: who measured what, and that another process's failure is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mainspring.experiments import bench_scheduler
from mainspring.experiments.scheduler_cost import INTERPRETED, CannotMeasure, Task, interpreted, perform, way
from mainspring.experiments.scheduler_load import Setting
from mainspring.native import SWITCH

TINY = Setting(models=61, devices=2, rate=400.0, seconds=0.2)


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(bench_scheduler.main)
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    return done.output


def test_the_other_process_runs_as_python_and_plays_the_same() -> None:
    done = interpreted(Task({"clockwork": TINY}, plays=1, profiled=TINY))
    here = perform(Task({"clockwork": TINY}, plays=1))
    assert (done.way, here.way) == (INTERPRETED, way())
    theirs, ours = done.costs["clockwork"], here.costs["clockwork"]
    assert (theirs.requests, theirs.in_time) == (ours.requests, ours.in_time)
    assert {kind: share.per_request for kind, share in theirs.budget.items()} == {
        kind: share.per_request for kind, share in ours.budget.items()
    }
    assert "dispatch.py" in done.profile, "a profile sees into a scheduler that runs as Python"


def test_what_the_other_process_said_is_told() -> None:
    with pytest.raises(CannotMeasure, match="there is no policy 'none-such'"):
        interpreted(Task({"none": Setting(policy="none-such")}, plays=1))


def test_the_report_names_policy_and_way_and_shows_clockwork_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_scheduler, "STEADY", TINY)
    monkeypatch.setattr(bench_scheduler, "OVERLOAD", TINY)
    said = run(
        "--policy", "edf", "--only", "base", "--seconds", "0.2", "--plays", "1", "--output", str(tmp_path)
    )
    report = json.loads((tmp_path / "scheduler.json").read_text())
    assert (report["policy"], report["way"]) == ("edf", way())
    names = ["clockwork steady", "edf steady", "clockwork overload", "edf overload"]
    assert list(report["base"]) == names
    assert list(report["interpreted"]) == (names if way() != INTERPRETED else [])
    assert report["base"]["edf steady"]["setting"]["policy"] == "edf"
    assert f"policy edf; the scheduler runs {way()}" in said
    assert "under a profiler, interpreted" in said
    if os.environ.get(SWITCH) == "0":
        assert "interpreted (off: MAINSPRING_NATIVE=0)" in said
