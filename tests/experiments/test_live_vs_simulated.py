"""What is read of a live run: a simulated log of a known path stands for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.experiments.live_vs_simulated import (
    FLUID_RATE,
    Pair,
    WayShown,
    path_of,
    spec_of,
    table,
)
from mainspring.simulator.costs import ControllerCost, CostSpec
from mainspring.simulator.run import SimulatedRun, simulate
from mainspring.simulator.spec import SimulationSpec
from mainspring.telemetry.log import EventLogWriter

SHOWN = WayShown(
    result_us=300.0,
    inputs_us=650.0,
    action_us=50.0,
    turn_us=30.0,
    client_us=700.0,
    controller_us=0.0,
    jitter=0.004,
)


def played(folder: Path, load: float, **changes: object) -> tuple[SimulationSpec, SimulatedRun]:
    spec = msgspec.structs.replace(spec_of(SHOWN, load, 4.0, ControllerCost()), cost=CostSpec(), **changes)
    log = EventLogWriter(folder)
    run = simulate(spec, record=log.append)
    log.close()
    return spec, run


def test_the_path_that_a_log_shows_is_the_path_that_it_took(tmp_path: Path) -> None:
    _, run = played(tmp_path, 0.9)
    found = path_of(tmp_path, 0, run.records, 12.0)
    assert found.result_us == pytest.approx(300.0, abs=1)
    assert found.inputs_us == pytest.approx(650.0, abs=1)
    assert found.action_us == pytest.approx(50.0, abs=40)
    assert found.turn_us == pytest.approx(30.0, abs=1)
    assert found.client_us == pytest.approx(700.0, abs=250)
    assert found.jitter == pytest.approx(0.004, rel=0.1)
    assert found.controller_us == 12.0


def test_the_table_has_a_row_for_each_load(tmp_path: Path) -> None:
    spec, run = played(tmp_path, 0.5)
    assert spec.workload[0].rate == pytest.approx(0.5 * FLUID_RATE)
    assert table([Pair(0.5, run.summary, run.summary, run.summary)]).row_count == 1
