"""A run at a glance: nothing is lost when its steps are joined, and it says what its log says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mainspring.console.checkpoints import FIRST_STEP_NS, MOST_STEPS, RunOverview
from mainspring.console.recorded import Recording
from mainspring.console.view.view import View
from mainspring.messages.actions import Reject
from mainspring.messages.events import RequestArrived
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.telemetry.log import read_entries
from tests.console.played import write_log

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("length_s", [10, 3_000, 100_000])
def test_steps_that_are_joined_lose_nothing(length_s: int) -> None:
    chance = random.Random(length_s)
    overview = RunOverview(5)
    counts = {"in_time": 0, "late": 0, "rejected": 0, "cancelled": 0}
    for _ in range(2_000):
        arrived_ns = 5 + chance.randrange(length_s * SECOND_NS)
        outcome = chance.choice(list(counts))
        counts[outcome] += 1
        overview.ended(arrived_ns, arrived_ns + 1_000_000, outcome)
    found = overview.payload(7, whole=True)
    assert len(found.offered) <= MOST_STEPS
    assert found.step_ns % FIRST_STEP_NS == 0
    assert MOST_STEPS * found.step_ns >= length_s * SECOND_NS / 2
    assert sum(found.offered) == 2_000
    sums = [sum(found.in_time), sum(found.late), sum(found.rejected)]
    assert sums == [counts["in_time"], counts["late"], counts["rejected"]]
    for answered, p99_ms in zip(zip(found.in_time, found.late, strict=True), found.p99_ms, strict=True):
        assert (p99_ms is not None) == (sum(answered) > 0)
        assert p99_ms is None or p99_ms == pytest.approx(1.0, rel=0.01)


def test_a_recording_says_what_became_of_all_its_requests(tmp_path: Path) -> None:
    spec = SimulationSpec(
        devices=(DeviceGroup(count=2, pages=20),),
        models=(ModelGroup(name="m", infer_ms={"1": 2.6, "8": 10.0}, load_ms=8.0, copies=12),),
        workload=(WorkloadSpec(rate=200.0), WorkloadSpec(rate=50.0, slo_ms=6.0)),
        scheduler=SchedulerConfig(),
        warm_up_s=0.0,
        duration_s=4.0,
    )
    write_log(tmp_path / "log", spec)
    entries = [entry for _, entry in read_entries(tmp_path / "log")]
    recording = Recording(tmp_path / "log", View())
    recording.seek(playing=False)
    while recording.work(10_000_000) == 0:
        pass
    found = recording.overview()
    recording.close()
    arrived = sum(isinstance(each, RequestArrived) for each in entries)
    rejected = sum(isinstance(each, Reject) for each in entries)
    assert rejected > 0
    assert sum(found.rejected) == rejected
    # What has not ended when the log does is nobody's outcome yet.
    assert arrived - 20 <= sum(found.offered) <= arrived
    assert sum(found.in_time) + sum(found.late) + rejected == sum(found.offered)
    assert found.whole
    assert found.reached_ns == recording.run.last_ns
