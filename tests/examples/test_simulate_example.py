from __future__ import annotations

from pathlib import Path

from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import read_spec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/simulate.toml"


def test_the_example_needs_no_other_file_and_answers_every_request() -> None:
    spec = read_spec(EXAMPLE, ["duration_s=3"])
    run = simulate(spec)
    summary = run.summary
    assert summary.offered > 1_000
    assert summary.offered == summary.goodput + summary.rejected_total + summary.late
    assert summary.lost == summary.unsent == 0
    assert summary.goodput_share > 0.8
    assert run.analysis is not None
    assert run.analysis.summary.workers_lost == 1
    assert run.fingerprint == simulate(spec).fingerprint
