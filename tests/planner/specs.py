"""A small spec to plan."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.simulator.objective import Objective
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.traces.rows import RowsSpec

ROWS = RowsSpec(kind="lognormal", mu=4.5, sigma=0.4, most=500, tail=((0.02, 250, 499),))
MODEL = ModelGroup(name="ranker", infer_ms={"10": 6.0, "50": 10.0, "100": 20.0, "200": 32.0, "500": 60.0})


def spec(**changes: Any) -> SimulationSpec:
    """Return two kinds, one four times as fast as the other, under a heavy-tailed load."""
    usual = SimulationSpec(
        devices=(
            DeviceGroup(kind="fast", speed=4.0, price=0.526, most=5),
            DeviceGroup(kind="cheap", speed=1.0, price=0.1, most=6),
        ),
        models=(MODEL,),
        workload=(WorkloadSpec(rate=300, slo_ms=62, rows=ROWS),),
        objective=Objective(attainment=0.99),
        warm_up_s=1,
        duration_s=15,
    )
    return msgspec.structs.replace(usual, **changes)


def workload(**changes: Any) -> tuple[WorkloadSpec, ...]:
    """Return the usual workload with changes."""
    return (msgspec.structs.replace(spec().workload[0], **changes),)
