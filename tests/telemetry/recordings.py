"""Logs of simulated runs, for tests of what reads logs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mainspring.controller.logged_scheduler import about
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import Crash, DeviceGroup, FaultsSpec, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.telemetry.log import EventLogWriter

EVENTFUL = SimulationSpec(
    devices=(DeviceGroup(count=2, pages=21),),
    models=(ModelGroup(name="m", infer_ms={"1": 2.6, "4": 6.0, "16": 17.3}, copies=8),),
    workload=(WorkloadSpec(rate=900.0, slo_ms=40.0), WorkloadSpec(rate=20.0, best_effort=True)),
    scheduler=SchedulerConfig(policy="clockwork"),
    warm_up_s=0.0,
    duration_s=3.0,
    faults=FaultsSpec(duration_jitter=0.1, crashes=(Crash(worker="worker-1", at_s=1.2, down_s=0.4),)),
)
"""Cold starts, evictions, rejections, a worker that is lost and comes back with nothing."""


def record(folder: Path, spec: SimulationSpec = EVENTFUL, *, segment_bytes: int = 64 << 20) -> Path:
    """Write the log of a simulated run into a folder, after what is there."""
    with pytest.MonkeyPatch.context() as patch:
        # The log begins on the simulation's clock, as a live one does on its controller's.
        patch.setattr(
            "mainspring.telemetry.log.time", SimpleNamespace(time_ns=time.time_ns, monotonic_ns=int)
        )
        log = EventLogWriter(folder, segment_bytes, about=about(spec.scheduler))
    simulate(spec, analyse=False, record=log.append)
    log.close()
    return folder
