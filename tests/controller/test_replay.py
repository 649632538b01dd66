"""Design rule 3: a live log, fed to a fresh scheduler, brings the same commands out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.messages.actions import Infer, Load, Reject
from mainspring.messages.events import Event, RequestArrived, Wakeup, WorkerJoined, WorkerLeft
from mainspring.messages.peers import Dispatch, Rejected
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.recorded import read_recording
from mainspring.simulator.redecide import redecide
from mainspring.simulator.whatif import other_policy, what_happened, what_if
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import read_entries, read_log, segments
from tests.controller.peers import FakeGateway, FakeWorker, Stage, spec

EVENTS = Event.__args__


def play(stage: Stage, gateway: FakeGateway, workers: list[FakeWorker], requests: int) -> None:
    """A lively hour in a second: hot and cold models, hopeless deadlines, a worker that falls silent."""
    expected = set()
    for counter in range(requests):
        left_ms = (2.0, 40.0, 200.0, None)[counter % 4]
        expected.add(gateway.arrive(counter, f"m{counter * 7 % 12}", 1 + counter % 3, left_ms))
        stage.pump()
        if counter == requests // 2:
            workers[1].answers_pings = False
            workers[1].holds = (Infer, Load)
    stage.until(lambda: expected <= answered(gateway))


def answered(gateway: FakeGateway) -> set[int]:
    dispatched = {number for dispatch in gateway.all(Dispatch) for number in dispatch.request_ids}
    return dispatched | {rejected.request_id for rejected in gateway.all(Rejected)}


def record(stage: Stage, log: Path, **config: object) -> None:
    """Play with two workers, one of which falls silent, and stop the controller."""
    models = tuple(spec(f"m{number}", infer_ms=3) for number in range(12))
    stage.start(
        models,
        SchedulerConfig(policy="clockwork", lookahead_ms=4.0, idle_loads=True),
        event_log_dir=str(log),
        heartbeat_interval_ms=50.0,
        heartbeat_timeout_ms=300.0,
        **config,
    )
    gateway = stage.gateway()
    workers = [stage.worker("w0"), stage.worker("w1", offset_ns=10**13)]
    stage.until(lambda: all(stage.knows(gateway, worker.name, 12) for worker in workers))
    play(stage, gateway, workers, 300)
    stage.stop()


@pytest.mark.parametrize("segment_bytes", [1 << 20, 4000])
def test_a_recorded_run_replays_to_the_same_commands(
    stage: Stage, tmp_path: Path, segment_bytes: int
) -> None:
    record(stage, tmp_path, event_log_segment_bytes=segment_bytes)
    found = redecide(tmp_path)
    assert found.difference is None, found.difference.story()
    logged = [entry for _, entry in read_log(tmp_path) if not isinstance(entry, EVENTS)]
    assert found.commands == len(logged)
    assert {Infer, Load, Reject} <= {type(command) for command in logged}
    assert (len(segments(tmp_path)) > 3) == (segment_bytes == 4000)


def test_what_a_recorded_run_would_have_been_under_another_policy(stage: Stage, tmp_path: Path) -> None:
    record(stage, tmp_path)
    recording = read_recording(tmp_path)
    assert recording.requests == 300
    assert len(recording.joins) == 2
    assert any(name == "w1" for _, name, _ in recording.crashes), "w1 fell silent"
    happened = what_happened(recording).summary
    instead = what_if(recording, other_policy(recording, "edf")).summary
    assert happened.offered == instead.offered == 300
    assert happened.goodput + happened.rejected_total + happened.late + happened.lost == 300
    assert instead.lost == 0


def test_the_log_has_events_on_the_controllers_clock_in_their_order(stage: Stage, tmp_path: Path) -> None:
    stage.start((spec(),), event_log_dir=str(tmp_path), heartbeat_timeout_ms=60_000.0)
    gateway = stage.gateway()
    worker = stage.worker(offset_ns=10**13)
    stage.until(lambda: stage.knows(gateway, "w0", 1))
    request_id = gateway.arrive(1, left_ms=10_000)
    stage.until(lambda: stage.knows(gateway, "w0", 1) and stage.status(gateway).workers[0].outstanding == 0)
    worker.close()
    stage.until(lambda: stage.status(gateway).workers == ())
    stage.stop()
    entries = [entry for entry in read_entries(tmp_path) if not isinstance(entry[1], Wakeup | SegmentHeader)]
    names = [type(entry).__name__ for _, entry in entries]
    loads_result_first = ["Load", "Result", "Infer", "Result"]
    # A worker that loads at once may be heard before it is told to infer.
    assert names[5:9] in (["Load", "Infer", "Result", "Result"], loads_result_first)
    assert names[:5] == ["ModelAdded", "WorkerJoined", "Prepare", "Result", "RequestArrived"]
    assert names[9:] == ["WorkerLeft"]
    assert [now_ns for now_ns, _ in entries] == sorted(now_ns for now_ns, _ in entries)
    arrived_ns, arrived = entries[4]
    assert isinstance(arrived, RequestArrived)
    assert arrived.request_id == request_id
    assert arrived.deadline_ns is not None
    assert arrived_ns + 9 * 10**9 < arrived.deadline_ns <= arrived_ns + 10 * 10**9
    for now_ns, entry in entries:
        if type(entry).__name__ == "Result":
            assert abs(entry.end_ns - now_ns) < 10**9  # type: ignore[union-attr]
    assert isinstance(entries[1][1], WorkerJoined)
    assert isinstance(entries[-1][1], WorkerLeft)


def test_a_log_that_cannot_be_written_stops_nothing_and_is_in_the_status(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    stage.start((spec(),), event_log_dir=str(tmp_path / "file" / "log"))
    gateway, worker = stage.cluster("m0")
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    counts = stage.status(gateway).dropped_messages
    assert any(why.startswith("event log off") and count > 0 for why, count in counts.items())
