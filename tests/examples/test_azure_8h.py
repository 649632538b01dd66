from __future__ import annotations

from pathlib import Path

from mainspring.simulator.spec_file import read_spec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/azure_8h.toml"


def test_the_example_is_eight_hours_on_six_devices() -> None:
    spec = read_spec(EXAMPLE, ["workload.trace=other.csv", "models.profiles=table.csv"])
    assert spec.warm_up_s + spec.duration_s == 8 * 3600
    assert sum(group.count for group in spec.devices) == 6
    assert spec.models[0].copies == 66
    assert spec.workload[0].trace == "other.csv"
