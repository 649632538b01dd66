"""The table of a sweep: points can be told apart however narrow the terminal is."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.simulator.sweep import SweepPoint
from mainspring.simulator.sweep_report import sweep_table

COLUMNS = ("offered/s", "goodput/s", "in time", "p50 ms", "p99 ms", "batch", "cold", "late")


def points() -> list[SweepPoint]:
    spec = SimulationSpec(
        devices=(DeviceGroup(),),
        models=(ModelGroup(name="m", infer_ms={"1": 2.6}),),
        workload=(WorkloadSpec(rate=100.0),),
        warm_up_s=0.0,
        duration_s=0.5,
    )
    run = simulate(spec, analyse=False)
    return [
        SweepPoint((f"workload.rate={rate}", f"scheduler.policy={policy}"), run.summary, run.fingerprint, 0.1)
        for rate in (400, 1200)
        for policy in ("clockwork", "mainspring")
    ]


def shown(width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width).print(sweep_table("spec.toml", points(), width))
    return text.getvalue().splitlines()


@pytest.mark.parametrize("width", [50, 80])
def test_a_narrow_table_leaves_columns_out_and_cuts_nothing(width: int) -> None:
    lines = shown(width)
    assert "…" not in "".join(lines)
    rows = [line.split()[1:4:2] for line in lines if line.startswith("│")]
    assert rows == [[rate, policy] for rate in ("400", "1200") for policy in ("clockwork", "mainspring")]
    text = " ".join(" ".join(lines).split())
    assert "not shown for want of width: late, batch" in text
    assert all(name in text for name in COLUMNS)


def test_a_wide_table_has_every_column() -> None:
    text = "\n".join(shown(140))
    assert "not shown" not in text
    assert all(name in text for name in COLUMNS)
    assert "workload." in text


def test_a_key_that_is_swept_twice_has_two_columns() -> None:
    twice = [msgspec.structs.replace(points()[0], settings=("seed=1", "seed=2"))]
    assert [column.header for column in sweep_table("spec.toml", twice, 140).columns][:2] == ["seed", "seed"]
