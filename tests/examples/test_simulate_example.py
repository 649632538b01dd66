from __future__ import annotations

from pathlib import Path

from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import read_spec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/simulate.toml"


def test_the_example_needs_no_other_file_and_answers_every_request() -> None:
    spec = read_spec(EXAMPLE, ["duration_s=3"])
    run = simulate(spec)
    summary = run.summary
    assert summary.offered > 2_000
    assert summary.offered == summary.goodput + summary.rejected_total + summary.late
    assert summary.lost == summary.unsent == 0
    assert summary.goodput_share > 0.8
    assert run.fingerprint == simulate(spec).fingerprint


def test_the_lesson_of_the_example_holds_for_other_seeds() -> None:
    for seed in range(3):
        settings = [f"seed={seed}", "duration_s=3"]
        ours = simulate(read_spec(EXAMPLE, settings), analyse=False).summary
        in_order = simulate(read_spec(EXAMPLE, [*settings, 'scheduler.policy="fifo"']), analyse=False).summary
        assert ours.offered == in_order.offered
        assert ours.goodput_share > in_order.goodput_share + 0.03, f"seed {seed}"
