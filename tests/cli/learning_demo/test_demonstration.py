"""The demonstration of learning, live and short: weights move away from the broken sensor, and back."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from mainspring.cli.learning_demo.demonstration import LearningDemoOptions, run_learning_demo
from mainspring.cli.learning_demo.sensors import (
    APPLICATIONS,
    BLUR,
    EQUAL,
    FIXED,
    LEARNT,
    Sensors,
    application,
)
from mainspring.messages.graphs import read_graph


def test_its_applications_are_such() -> None:
    for name in APPLICATIONS:
        spec = read_graph(application(name, 100), name).application
        assert spec is not None
        assert spec.members == tuple(BLUR)


def test_a_broken_sensor_reads_another_class() -> None:
    whole, broken = Sensors(3), Sensors(3)
    (read, seen), (misread, same) = whole.thing(), broken.thing("near")
    assert seen == same
    assert abs(read["near"] - misread["near"]).max() > 1


def test_weights_leave_a_broken_sensor_and_come_back(tmp_path: Path) -> None:
    said = io.StringIO()
    options = LearningDemoOptions(duration_s=9.0, slo_ms=20_000, output=tmp_path, seed=0)
    report = run_learning_demo(options, Console(file=said, width=100))
    healthy, broken, mended = report.rows
    assert healthy.weights["near"] > 0.5
    assert broken.weights["near"] < 0.2
    assert mended.weights["near"] > 0.3
    assert healthy.error(LEARNT) < healthy.error(EQUAL)
    assert broken.error(LEARNT) < broken.error(FIXED)
    assert [row.kept for row in report.rows] == [1, 1, 1]
    assert "its console is at http://127.0.0.1:" in said.getvalue()
    assert len(json.loads((tmp_path / "learning.json").read_text())["rows"]) == len(report.rows)
