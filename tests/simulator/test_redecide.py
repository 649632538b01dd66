"""Recorded runs decided again, and under other decisions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.controller.logged_scheduler import about
from mainspring.messages.actions import Command, Infer, Note, without_evidence
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.recorded import Recording, read_recording, recorded_arrivals
from mainspring.simulator.redecide import LogError, redecide
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import (
    Crash,
    DeviceGroup,
    FaultsSpec,
    ModelGroup,
    SimulationSpec,
    SpecError,
    WorkloadSpec,
)
from mainspring.simulator.whatif import bounded, other_policy, what_happened, what_if
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import EventLogWriter, read_entries, read_log

SPEC = SimulationSpec(
    devices=(DeviceGroup(count=2, pages=21),),
    models=(ModelGroup(name="m", infer_ms={"1": 2.6, "4": 6.0, "16": 17.3}, copies=8),),
    workload=(WorkloadSpec(rate=600.0),),
    scheduler=SchedulerConfig(policy="clockwork"),
    warm_up_s=0.0,
    duration_s=3.0,
    faults=FaultsSpec(duration_jitter=0.02),
)


def record(folder: Path, spec: SimulationSpec = SPEC, clock_ns: int = 0) -> Path:
    log = EventLogWriter(folder, about=about(spec.scheduler))
    simulate(spec, analyse=False, record=lambda now_ns, entry: log.append(now_ns + clock_ns, entry))
    log.close()
    return folder


def rewritten(log: Path, folder: Path, change: object) -> Path:
    """Write a log again with one function applied to its entries; None leaves an entry out."""
    writer: EventLogWriter | None = None
    for now_ns, entry in read_entries(log):
        if isinstance(entry, SegmentHeader):
            writer = EventLogWriter(folder, about=entry.about)
        else:
            changed = change(entry)  # type: ignore[operator]
            if changed is not None:
                assert writer is not None
                writer.append(now_ns, changed)
    assert writer is not None
    writer.close()
    return folder


def as_version(version: int, log: Path, folder: Path) -> Path:
    """Write a log again as an earlier version had it.

    Neither 1 nor 2 had evidence; in 1 every command came behind the next Wakeup, and there were no notes.
    """
    entries = read_entries(log)
    _, header = next(entries)
    assert isinstance(header, SegmentHeader)
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr("mainspring.telemetry.log.FORMAT", version)
        writer = EventLogWriter(folder, about=header.about)
    held: list[tuple[int, Command]] = []
    woken = False
    for now_ns, entry in entries:
        assert not isinstance(entry, SegmentHeader)
        if isinstance(entry, Event):
            writer.append(now_ns, entry)
            woken = version > 1 or isinstance(entry, Wakeup)
            while woken and held:
                writer.append(*held.pop(0))
        elif version > 1 or not isinstance(entry, Note):
            record = now_ns, without_evidence(entry)
            if woken:
                writer.append(*record)
            else:
                held.append(record)
    writer.close()
    return folder


@pytest.mark.parametrize("version", [1, 2])
def test_a_log_of_an_earlier_version_is_decided_again(tmp_path: Path, version: int) -> None:
    slow = FaultsSpec(duration_jitter=0.02, slow_probability=0.5, slow_ms=100.0)
    spec = msgspec.structs.replace(SPEC, scheduler=SchedulerConfig(refuse_wrongly=0.0), faults=slow)
    recorded = record(tmp_path / "now", spec)
    noted = sum(isinstance(entry, Note) for _, entry in read_entries(recorded))
    again = redecide(recorded)
    earlier = as_version(version, recorded, tmp_path / "earlier")
    found = redecide(earlier)
    assert again.difference is found.difference is None
    assert noted > 0
    assert found.commands == again.commands - (noted if version == 1 else 0) > 1_000


def test_evidence_that_differs_is_a_difference(tmp_path: Path) -> None:
    count = 0

    def spoil(entry: object) -> object:
        nonlocal count
        if not isinstance(entry, Infer):
            return entry
        count += 1
        assert entry.evidence is not None
        evidence = msgspec.structs.replace(entry.evidence, inputs_ns=entry.evidence.inputs_ns + (count == 40))
        return msgspec.structs.replace(entry, evidence=evidence)

    found = redecide(rewritten(record(tmp_path / "a"), tmp_path / "b", spoil))
    assert found.difference is not None
    assert found.difference.recorded != found.difference.again
    assert found.commands > 40


def test_a_recorded_run_is_decided_again_command_for_command(tmp_path: Path) -> None:
    found = redecide(record(tmp_path))
    assert found.difference is None
    assert found.runs == 1
    assert found.commands > 500


def test_infers_that_are_predicted_by_their_sizes_are_decided_again(tmp_path: Path) -> None:
    shaped_ms = {"16": {"1": 2.0, "4": 4.0}, "128": {"1": 10.0, "4": 30.0}}
    group = ModelGroup(name="text", symbols=("seq",), pads=True, shaped_ms=shaped_ms)
    workload = (WorkloadSpec(rate=250.0, slo_ms=60.0, shape={"seq": "40~0.8"}),)
    spec = msgspec.structs.replace(SPEC, models=(group,), workload=workload)
    log = record(tmp_path / "log", spec)
    infers = [entry for _, entry in read_entries(log) if isinstance(entry, Infer)]
    assert len({infer.predicted_duration_ns for infer in infers}) > 50
    again = redecide(log)
    assert again.difference is None


def test_the_first_difference_is_told_with_what_came_before(tmp_path: Path) -> None:
    log = record(tmp_path / "a")
    count = 0

    def spoil(entry: object) -> object:
        nonlocal count
        count += isinstance(entry, Infer)
        return (
            msgspec.structs.replace(entry, batch_size=3)
            if count == 40 and isinstance(entry, Infer)
            else entry
        )

    difference = redecide(rewritten(log, tmp_path / "b", spoil)).difference
    assert difference is not None
    assert "batch 3" in difference.recorded
    assert difference.again.startswith(difference.recorded.split("batch")[0])
    assert "batch 3" not in difference.again
    assert len(difference.before) == 12
    assert difference.recorded in difference.story()


def test_a_missing_command_and_another_policy_are_differences(tmp_path: Path) -> None:
    log = record(tmp_path / "a")
    seen = False

    def drop(entry: object) -> object:
        nonlocal seen
        first, seen = isinstance(entry, Infer) and not seen, seen or isinstance(entry, Infer)
        return None if first else entry

    missing = redecide(rewritten(log, tmp_path / "b", drop)).difference
    assert missing is not None
    assert missing.again.split()[1:3] == ["<", "INFER"]
    writer = EventLogWriter(tmp_path / "c", about=about(SchedulerConfig(policy="edf")))
    for now_ns, entry in read_entries(log):
        if not isinstance(entry, SegmentHeader):
            writer.append(now_ns, entry)
    writer.close()
    assert redecide(tmp_path / "c").difference is not None


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    log = EventLogWriter(tmp_path / "a", segment_bytes=4000, max_bytes=12_000, about=about(SPEC.scheduler))
    simulate(SPEC, analyse=False, record=log.append)
    log.close()
    with pytest.raises(LogError, match="oldest segments were deleted"):
        redecide(tmp_path / "a")
    whole = record(tmp_path / "a")
    found = redecide(whole)
    assert (found.runs, found.difference) == (1, None)
    assert found.commands > 500, "the first run that is there from its beginning"
    assert found.passed_over > 10
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="not a log of a controller"):
        redecide(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        redecide(tmp_path / "nowhere")


def test_the_same_policy_again_comes_close_to_what_happened(tmp_path: Path) -> None:
    recording = read_recording(record(tmp_path))
    assert recording.delay_ns == 100_000
    assert recording.duration_jitter == pytest.approx(0.02, rel=0.15)
    assert recording.models[0].profiles["gpu"].infer_ns[1] == pytest.approx(2.6e6, rel=0.01)
    happened = what_happened(recording).summary
    again = what_if(recording, other_policy(recording, "clockwork")).summary
    assert again.offered == happened.offered == recording.requests
    assert again.goodput == pytest.approx(happened.goodput, rel=0.02)
    assert again.p50_ms == pytest.approx(happened.p50_ms, rel=0.1)


def test_another_policy_decides_otherwise_on_the_same_arrivals(tmp_path: Path) -> None:
    busy = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=2500.0),))
    recording = read_recording(record(tmp_path, busy))
    happened = what_happened(recording).summary
    instead = what_if(recording, other_policy(recording, "edf")).summary
    assert instead.offered == happened.offered
    assert instead.goodput != happened.goodput
    assert instead.notes["policy"] == "edf"


def test_workers_that_left_leave_again(tmp_path: Path) -> None:
    crash = Crash(worker="worker-1", at_s=1.0, down_s=0.8)
    faults = FaultsSpec(crashes=(crash,), detection_ms=100.0)
    recording = read_recording(record(tmp_path, msgspec.structs.replace(SPEC, faults=faults)))
    (told,) = recording.crashes
    assert told[1] == "worker-1"
    assert told[2] == pytest.approx(0.7e9, rel=0.02)
    instead = what_if(recording, other_policy(recording, "clockwork"))
    assert instead.analysis.summary.workers_lost == 1


def test_a_worker_that_came_back_with_what_it_held_comes_back_with_it(tmp_path: Path) -> None:
    def lose(log: Path, *, empty: bool) -> Recording:
        """Let worker-1 be away for 300 ms."""
        left_ns: int | None = None
        joined: WorkerJoined | None = None
        writer = EventLogWriter(log, about=about(SPEC.scheduler))
        for now_ns, entry in read_entries(tmp_path / "whole"):
            if isinstance(entry, SegmentHeader):
                continue
            if isinstance(entry, WorkerJoined) and entry.worker == "worker-1":
                joined = entry
            if left_ns is None and now_ns > 1_000_000_000:
                left_ns = now_ns
                writer.append(now_ns, WorkerLeft("worker-1", "silent"))
            if left_ns is not None and now_ns > left_ns + 300_000_000 and joined is not None:
                anew = msgspec.structs.replace(joined, prepared={}, resident=())
                writer.append(now_ns, anew if empty else joined)
                joined = None
            writer.append(now_ns, entry)
        writer.close()
        return read_recording(log)

    record(tmp_path / "whole", msgspec.structs.replace(SPEC, devices=(DeviceGroup(count=2, pages=64),)))
    kept, lost = (lose(tmp_path / name, empty=empty) for name, empty in (("kept", False), ("lost", True)))
    assert (len(kept.session_losses), len(kept.crashes)) == (1, 0)
    assert (len(lost.session_losses), len(lost.crashes)) == (0, 1)
    assert kept.session_losses[0][1:] == lost.crashes[0][1:]
    assert kept.session_losses[0][2] == pytest.approx(3e8, rel=0.05)
    held = []
    for recording in (kept, lost):
        instead = what_if(recording, other_policy(recording, "clockwork"))
        assert instead.analysis.summary.workers_lost == 1
        held.append(instead.analysis.summary.page_occupancy)
    assert held[0] is not None
    assert held[1] is not None
    assert held[0] > 1.1 * held[1], "it should hold what it held before"


def test_the_same_requests_are_bounded_once_for_what_happened_and_what_might_have(tmp_path: Path) -> None:
    short = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=2500.0),), duration_s=0.6)
    recording = read_recording(record(tmp_path, short))
    happened, instead = bounded(
        recording, what_happened(recording), what_if(recording, other_policy(recording, "edf"))
    )
    one, other = happened.summary.possible, instead.summary.possible
    assert one is not None
    assert other is not None
    assert (one.requests, one.at_most) == (other.requests, other.at_most)
    assert one.in_time == happened.summary.goodput
    assert other.in_time == instead.summary.goodput
    assert max(one.share, other.share) <= 1


def test_options_of_another_policy_and_of_the_same_one(tmp_path: Path) -> None:
    recording = read_recording(record(tmp_path, msgspec.structs.replace(SPEC, duration_s=0.2)))
    own = SchedulerConfig(policy="mainspring", policy_options={"fairness": 0.25})
    recording = msgspec.structs.replace(recording, scheduler=own)
    assert other_policy(recording, "edf", {"skip_heads": True}).policy_options == {"skip_heads": True}
    assert other_policy(recording, None, {"fairness": 0.5}).policy_options == {"fairness": 0.5}
    assert other_policy(recording, "mainspring") == own


def test_only_the_last_run_is_played_again_though_the_clock_began_anew(tmp_path: Path) -> None:
    uptime_ns = 10**15
    record(tmp_path, clock_ns=uptime_ns)
    last = msgspec.structs.replace(SPEC, seed=1, duration_s=1.0)
    recording = read_recording(record(tmp_path, last))
    assert 400 < recording.requests < 800
    happened = what_happened(recording)
    assert happened.summary.offered == recording.requests
    assert happened.analysis.summary.requests_seen == recording.requests
    again = what_if(recording, other_policy(recording, "edf")).summary
    assert again.offered == recording.requests
    assert again.notes["ended"] == "finished"
    workload = (WorkloadSpec(kind="log", log=str(tmp_path)),)
    played = simulate(msgspec.structs.replace(last, workload=workload)).summary
    assert played.offered == pytest.approx(recording.requests, abs=1)


def test_a_model_that_was_replaced_before_the_first_request_is_there(tmp_path: Path) -> None:
    log = record(tmp_path / "a")
    writer = EventLogWriter(tmp_path / "b", about=about(SPEC.scheduler))
    for now_ns, entry in read_entries(log):
        if isinstance(entry, SegmentHeader):
            continue
        writer.append(now_ns, entry)
        if isinstance(entry, ModelAdded) and entry.model.name == "m-1":
            writer.append(now_ns, ModelRemoved("m-1"))
            writer.append(now_ns, entry)
    writer.close()
    recording = read_recording(tmp_path / "b")
    assert not recording.changes
    assert {spec.name for spec in recording.models} >= {"m-1", "m-8"}


def test_a_model_that_came_later_takes_the_time_that_was_measured(tmp_path: Path) -> None:
    log = record(tmp_path / "a")
    writer = EventLogWriter(tmp_path / "b", about=about(SPEC.scheduler))
    later: ModelAdded | None = None
    requested = False
    for now_ns, entry in read_entries(log):
        if isinstance(entry, ModelAdded) and entry.model.name == "m-1":
            elsewhere = {"another kind": entry.model.profiles["gpu"]}
            later = ModelAdded(msgspec.structs.replace(entry.model, profiles=elsewhere))
        elif not isinstance(entry, SegmentHeader):
            writer.append(now_ns, entry)
            if isinstance(entry, RequestArrived) and not requested:
                assert later is not None
                writer.append(now_ns, later)
                requested = True
    writer.close()
    recording = read_recording(tmp_path / "b")
    ((_, change),) = recording.changes
    assert isinstance(change, ModelAdded)
    assert change.model.profiles["gpu"].infer_ns[1] == pytest.approx(2.6e6, rel=0.01)
    instead = what_if(recording, other_policy(recording, "edf")).summary
    assert instead.goodput > 0.9 * recording.requests


@pytest.mark.parametrize("wrong", [{}, {"scheduler": {"policy": 3}}])
def test_a_log_that_is_no_controllers_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    writer = EventLogWriter(tmp_path / "log", about=wrong)
    writer.append(1, ModelRemoved("m"))
    writer.close()
    for read in (redecide, read_recording):
        with pytest.raises(LogError, match="configur"):
            read(tmp_path / "log")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="not a log of a controller"):
        read_recording(tmp_path / "empty")
    with pytest.raises(SpecError, match="no request to any of these models"):
        simulate(
            msgspec.structs.replace(SPEC, workload=(WorkloadSpec(kind="log", log=str(tmp_path / "empty")),))
        )


def test_requests_of_open_dimensions_keep_their_sizes(tmp_path: Path) -> None:
    """So other policies play over them, with durations as measured at the sizes of each batch."""
    shaped_ms = {
        "16": {"1": 2.0, "4": 4.0},
        "64": {"1": 5.0, "4": 12.0},
        "128": {"1": 10.0, "4": 30.0},
    }
    spec = SimulationSpec(
        warm_up_s=0.0,
        duration_s=2.0,
        devices=(DeviceGroup(count=1),),
        models=(ModelGroup(name="text", copies=2, symbols=("seq",), shaped_ms=shaped_ms),),
        workload=(WorkloadSpec(rate=150.0, slo_ms=60.0, shape={"seq": "40~0.8"}),),
        scheduler=SchedulerConfig(policy="clockwork"),
    )
    log = record(tmp_path, spec)
    recording = read_recording(log)
    given = [entry.sizes for _, entry in read_log(log) if isinstance(entry, RequestArrived)]
    assert len({*given}) > 50
    assert [each.sizes for each in recorded_arrivals(recording)] == given
    profile = recording.models[0].profiles["gpu"]
    for bucket, durations in shaped_ms.items():
        for size, ms in durations.items():
            assert profile.shaped[bucket][int(size)] == pytest.approx(ms * 1e6, rel=0.03), (bucket, size)
    happened = what_happened(recording).summary
    again = what_if(recording, other_policy(recording, "clockwork")).summary
    assert again.goodput == pytest.approx(happened.goodput, abs=0.02)
    assert again.p50_ms == pytest.approx(happened.p50_ms, rel=0.1)
    instead = what_if(recording, other_policy(recording, "fifo")).summary
    assert instead.offered == happened.offered
    assert instead.goodput > 0


def test_requests_keep_their_priorities(tmp_path: Path) -> None:
    """So another policy ranks them as the recorded one did."""

    def ranked(entry: object) -> object:
        if isinstance(entry, RequestArrived):
            return msgspec.structs.replace(entry, priority=entry.request_id % 3)
        return entry

    busy = msgspec.structs.replace(SPEC, workload=(WorkloadSpec(rate=1500.0, slo_ms=60.0),))
    log = rewritten(record(tmp_path / "plain", busy), tmp_path / "ranked", ranked)
    given = [entry.priority for _, entry in read_log(log) if isinstance(entry, RequestArrived)]
    assert {*given} == {0, 1, 2}
    assert [each.priority for each in recorded_arrivals(read_recording(log))] == given
    group = msgspec.structs.replace(busy, workload=(WorkloadSpec(kind="log", log=str(log)),))
    told: list[int] = []
    simulate(
        group,
        analyse=False,
        record=lambda _, entry: told.append(entry.priority) if isinstance(entry, RequestArrived) else None,
    )
    assert told == given
