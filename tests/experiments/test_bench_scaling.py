"""The benchmark of a cluster that grows and shrinks: that it runs, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

from mainspring.experiments.bench.scaling import STEPS, main


def test_a_short_run_loses_nothing_and_takes_every_step(tmp_path: Path) -> None:
    main(seconds=24, load=0.25, execute_ms=20, output=tmp_path)
    report = json.loads((tmp_path / "scaling.json").read_text())
    assert [step["count"] for step in report["steps"]] == list(STEPS)
    assert all(step["took_s"] is not None for step in report["steps"]), report["steps"]
    figures = {figure["name"]: figure["value"] for figure in report["figures"]}
    assert figures["lost"] == 0
    assert figures["in time"] > 50
