"""A load of devices that are slow now and then, for models of which few have most of the requests."""

from __future__ import annotations

from pathlib import Path

from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import read_spec
from mainspring.telemetry.report import Summary

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/skewed_demand.toml"


def played(*settings: str) -> Summary:
    return simulate(read_spec(EXAMPLE, settings), analyse=False).summary


def test_the_lesson_of_the_example_holds_for_other_seeds() -> None:
    for seed in range(2):
        settings = [f"seed={seed}", "duration_s=3"]
        slow, even = played(*settings), played(*settings, "faults.spells=[]")
        assert slow.offered == even.offered > 5_000
        assert even.goodput_share > 0.95
        assert 0.005 < even.goodput_share - slow.goodput_share < 0.15
