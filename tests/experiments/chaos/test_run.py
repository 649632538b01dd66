"""`make chaos`: a short run of real processes under faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mainspring.experiments.chaos import __main__ as chaos


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(chaos.main)
    return made


def test_a_short_run_loses_nothing_and_tells_each_fault(app: typer.Typer, tmp_path: Path) -> None:
    words = [
        "--minutes",
        "0.25",
        "--every",
        "4",
        "--seed",
        "1",
        "--slo-ms",
        "20000",
        "--output",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, [*words, "--only", "kill", "--only", "cut"])
    assert result.exit_code == 0, result.output
    found = {
        each["name"]: each["value"] for each in json.loads((tmp_path / "chaos.json").read_text())["figures"]
    }
    assert found["offered"] > 0
    assert [found[name] for name in ("lost", "answered twice", "after deadline and grace")] == [0, 0, 0]
    assert result.output.count("kill ") >= 2, "as it happens, and in the table"


def test_an_unknown_fault_is_named(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--only", "flood"])
    assert result.exit_code == 2
    assert "'flood' is none of kill, stop, slow" in result.output
