"""Early refusals of whole runs: decided again, and by another rule; clients that come back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.controller.logged_scheduler import about
from mainspring.messages.actions import Reject
from mainspring.messages.codes import Reason
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.recorded import read_recording
from mainspring.simulator.redecide import configuration, redecide
from mainspring.simulator.run import SimulatedRun, simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.simulator.whatif import hastiness, other_policy, what_happened, what_if
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import EventLogWriter, read_log
from mainspring.traces.records import FIRST_REASON, REASONS

DURATIONS_MS = {"1": 2.7, "2": 3.7, "4": 5.7, "8": 9.7, "16": 17.7}
SPEC = SimulationSpec(
    warm_up_s=0.0,
    duration_s=2.0,
    devices=(DeviceGroup(count=2),),
    models=(ModelGroup(name="m", copies=6, infer_ms=DURATIONS_MS),),
    workload=(WorkloadSpec(rate=2700.0, slo_ms=60.0),),
    scheduler=SchedulerConfig(),
)


def record(folder: Path, spec: SimulationSpec = SPEC) -> SimulatedRun:
    log = EventLogWriter(folder, about=about(spec.scheduler))
    run = simulate(spec, analyse=False, record=log.append)
    log.close()
    return run


def test_a_log_is_decided_again_and_by_the_other_rule(tmp_path: Path) -> None:
    record(tmp_path)
    found = redecide(tmp_path)
    assert found.difference is None
    assert found.commands > 1000
    recording = read_recording(tmp_path)
    happened = what_happened(recording)
    outcomes = happened.records.columns()[1]["outcome"]
    assert len(happened.early) == (outcomes == FIRST_REASON + REASONS.index(Reason.OVERLOADED)).sum() > 500
    last = what_if(recording, other_policy(recording, refuse_wrongly=0.0))
    assert last.early == ()
    counted = hastiness(happened, last)
    assert counted.early == len(happened.early) <= counted.refused
    assert 0 < counted.answered < 0.7 * counted.early, "mostly in the place of others"
    assert abs(counted.gained) < 0.02 * len(outcomes)
    assert f"{counted.early:,} of {counted.refused:,} requests" in counted.told()
    again = what_if(recording, other_policy(recording))
    assert abs(len(again.early) - len(happened.early)) < 0.1 * len(happened.early)


@pytest.mark.parametrize(
    ("format_", "recorded", "wrongly"),
    [
        (4, {"refuse_wrongly": 0.15}, 0.0),
        (7, {"refuse": "last", "refuse_wrongly": 0.15}, 0.0),
        (7, {"refuse": "early", "refuse_wrongly": 0.2}, 0.2),
        (8, {"refuse": None, "refuse_wrongly": 0.15}, None),
        (8, {"refuse_wrongly": 0.2}, 0.2),
        (8, {}, None),
    ],
)
def test_an_older_log_is_decided_as_it_was(
    format_: int, recorded: dict[str, object], wrongly: float | None
) -> None:
    header = SegmentHeader(format_, 1, True, 1, {"scheduler": recorded})
    assert configuration(header).refuse_wrongly == wrongly


def test_what_a_recorded_run_lost_by_early_refusals_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    record(log, msgspec.structs.replace(SPEC, duration_s=0.4))
    arguments = [
        "simulate",
        "--log",
        log,
        "--policy",
        "clockwork",
        "--output",
        tmp_path / "out",
        "--no-bound",
    ]
    result = CliRunner().invoke(build_app(), [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "were refused early" in result.output
    early = [
        each.request_id
        for _, each in read_log(log)
        if isinstance(each, Reject) and each.reason is Reason.OVERLOADED
    ]
    result = CliRunner().invoke(build_app(), ["explain", str(early[-1]), "--log", str(log)])
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "Refused early, after" in told
    assert "would be accepted." in told


def test_clients_come_back_once_with_what_is_left() -> None:
    asking = msgspec.structs.replace(SPEC.workload[0], retry_ms=10.0)
    arrived: dict[int, int] = {}

    def count(now_ns: int, entry: object) -> None:
        if type(entry).__name__ == "RequestArrived":
            arrived[len(arrived)] = now_ns

    run = simulate(msgspec.structs.replace(SPEC, workload=(asking,)), analyse=False, record=count)
    sent, replied = run.records.columns()
    once = simulate(SPEC, analyse=False)
    assert len(sent) == len(once.records.columns()[0]), "what comes back is the same request"
    assert len(arrived) > 1.15 * len(sent)
    assert not np.any(replied["outcome"] == 0), "each has its answer"
    # Who comes back is answered at most once, and never told later than its deadline and its way.
    refused = replied["outcome"] >= FIRST_REASON
    took_ns = (replied["replied_ns"] - sent["intended_ns"])[refused]
    assert took_ns.max() < 60.5e6


def test_a_time_to_come_back_after_is_no_negative_one() -> None:
    with pytest.raises(ValueError, match="retry_ms"):
        WorkloadSpec(retry_ms=-1.0)
