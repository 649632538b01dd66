"""Counting the scheduler's instructions: that the command works where it can, and says why it can't."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mainspring.experiments.bench import instructions
from mainspring.experiments.scheduler_load import Setting
from mainspring.scheduler import core

COMPILED = not core.__file__.endswith(".py")


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(instructions.main)
    return made


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not COMPILED or shutil.which("valgrind") is None, reason="needs Valgrind, and make native"
)
def test_only_the_schedulers_own_instructions_are_counted() -> None:
    counted, requests = instructions.count(Setting(policy="clockwork", models=61, seconds=0.2))
    assert requests > 0
    # Python takes a hundred times as many to start.
    assert 1_000 < counted / requests < 1_000_000


def test_the_difference_of_two_plays_is_shared_among_the_requests_between_them(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {2.0: (90_000, 8), 1.0: (60_000, 5)}
    monkeypatch.setattr(core, "__file__", "core.so")
    monkeypatch.setattr(shutil, "which", lambda _: "valgrind")
    monkeypatch.setattr(instructions, "count", lambda setting: counts[setting.seconds])
    result = CliRunner().invoke(app, ["--policy", "clockwork", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (figure,) = json.loads((tmp_path / "instructions.json").read_text())["figures"]
    assert (figure["name"], figure["value"]) == ("clockwork: instructions a request", 10_000)


def test_what_is_missing_is_said(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "__file__", "core.py")
    result = CliRunner().invoke(app, [])
    assert (result.exit_code, "make native" in str(result.exception)) == (1, True)
    monkeypatch.setattr(core, "__file__", "core.so")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    result = CliRunner().invoke(app, [])
    assert "apt-get install valgrind" in str(result.exception)
    assert result.exit_code == 1


def test_the_requests_of_a_play_are_counted() -> None:
    few, more = (
        instructions.played(Setting(policy="clockwork", models=61, seconds=each)) for each in (0.2, 0.4)
    )
    assert 0 < few < more
