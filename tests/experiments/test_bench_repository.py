"""The benchmark of a large model repository, on a small one."""

from __future__ import annotations

from pathlib import Path

from mainspring.experiments.bench.repository import Site, measure


def test_the_benchmark_measures_what_it_says(tmp_path: Path) -> None:
    site = Site(tmp_path, 6, poll_ms=100.0, settle_ms=50.0)
    found = {figure.name: figure for figure in measure(site, 2, changes=1, idle_s=0.5, poll_ms=100.0)}
    assert "2 executables of 2 architectures" in found["6 models: from the start until all are served"].note
    assert all(figure.value > 0 for figure in found.values())
