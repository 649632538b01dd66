"""`mainspring plan` of a graph, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.planner.problem import PlanError
from mainspring.simulator.spec_file import read_spec

SPEC = """
duration_s = 15
warm_up_s = 0
[[devices]]
kind = "gpu"
price = 0.7
most = 8
[[devices]]
kind = "cpu"
price = 0.05
most = 60
speed = 0.1
[[models]]
name = "detect"
infer_ms = { 1 = 9, 2 = 12, 4 = 18, 8 = 30 }
[[models]]
name = "read"
infer_ms = { 1 = 6, 2 = 8, 4 = 12, 8 = 20 }
[[graphs]]
name = "plates"
steps = [{ model = "detect" }, { model = "read", share = 0.4 }]
[[workload]]
models = "plates"
rate = 150
slo_ms = 120
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_a_plan_is_a_table_and_a_spec_that_is_simulated(spec: Path, tmp_path: Path) -> None:
    told = run("plan", spec, "--output", tmp_path / "out")
    lines = told.splitlines()
    assert all(len(line) <= 80 for line in lines[:5])
    assert lines[1].startswith("detect")
    assert lines[2].startswith("read")
    counts = {group.kind: group.count for group in read_spec(tmp_path / "out" / "plan.toml").devices}
    stations = json.loads((tmp_path / "out" / "plan.json").read_text())["best"]["stations"]
    for kind, count in counts.items():
        assert count == sum(each["replicas"] for each in stations if each["kind"] == kind)
    simulated = run("simulate", tmp_path / "out" / "plan.toml", "--output", tmp_path / "run")
    assert "plates" in simulated or "goodput" in simulated.lower()


def test_the_exact_search_prints_the_gap(spec: Path, tmp_path: Path) -> None:
    told = run("plan", spec, "--output", tmp_path / "out", "--search", "exact")
    assert "the greedy plan costs" in told
    assert "the cheapest" in told


def test_without_enough_devices_it_says_what_it_would_take(spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace("most = 8", "most = 1").replace("most = 60", "most = 2"))
    told = run("plan", spec, "--output", tmp_path / "out", code=1)
    assert "no plan within the kinds' most; it would take" in told
    assert "within most, plans carry up to" in told
    assert not (tmp_path / "out" / "plan.toml").exists()


def test_an_slo_below_the_service_time_is_refused(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"the least feasible is 1[56]"):
        run("plan", spec, "--output", tmp_path / "out", "--set", "workload.slo_ms=10")


def test_other_estimators_are_refused(spec: Path, tmp_path: Path) -> None:
    told = run("plan", spec, "--output", tmp_path / "out", "--evaluate", "simulate", code=2)
    assert "graphs are planned by queues" in told
