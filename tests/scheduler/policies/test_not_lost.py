"""Requests of many rows are not passed over until they are lost while there is time for all."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, NetworkSpec, SimulationSpec, WorkloadSpec
from mainspring.traces.records import OUTPUTS
from mainspring.traces.rows import RowsSpec

SPEC = SimulationSpec(
    devices=(DeviceGroup(kind="gpu", count=3),),
    models=(
        ModelGroup(
            name="ranker", infer_ms={"10": 4, "100": 5, "150": 5.5, "200": 6, "300": 6.7, "400": 8, "500": 9}
        ),
    ),
    workload=(
        WorkloadSpec(
            rate=580,
            slo_ms=22,
            rows=RowsSpec(kind="gaussian", mean=160, deviation=30, most=500, tail=((0.05, 400, 500),)),
        ),
    ),
    network=NetworkSpec(delay_us=0),
    scheduler=SchedulerConfig(dispatch_delay_ms=0, response_margin_ms=0),
    warm_up_s=0.5,
    duration_s=4,
)


@pytest.mark.parametrize("seed", [0, 1])
def test_large_requests_are_served_about_as_well_as_small_ones(seed: int) -> None:
    run = simulate(msgspec.structs.replace(SPEC, seed=seed), analyse=False)
    sent, replied = run.records.columns()
    missed = replied["outcome"] != OUTPUTS
    large = sent["rows"] >= 400
    assert large.sum() > 50
    assert missed[large].mean() < 0.1
    assert missed[~large].mean() < 0.02
