"""A slice tells of its time what the whole log tells, however the cut falls."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.cluster.apply import settle
from mainspring.messages.actions import Infer, Load, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelAdded, OperatorAsked, RequestArrived, WorkerJoined
from mainspring.messages.operating import PinModel
from mainspring.simulator.recorded import read_recording
from mainspring.simulator.redecide import LogError, redecide
from mainspring.simulator.whatif import what_happened, what_if
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife
from mainspring.telemetry.log import read_entries, read_log
from mainspring.telemetry.runs import LogProblem, choose_run, find_runs, read_run
from mainspring.telemetry.slices import slice_run
from mainspring.telemetry.summary import analyse_log
from tests.cluster.described import described
from tests.telemetry.recordings import record

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("whole"), segment_bytes=100_000)


class Told:
    """What a log tells of a time, as plain values."""

    def __init__(self, log: Path, from_ns: int, to_ns: int) -> None:
        self.ended: list[object] = []
        lives = Lifecycles(self._request, self._action)
        self._on = False
        for now_ns, entry in read_run(choose_run(log)):
            if now_ns >= to_ns and not isinstance(entry, SegmentHeader):
                break
            self._on = now_ns >= from_ns
            lives.take(now_ns, entry)
        self.queued = lives.queued
        cluster = lives.cluster
        settle(cluster)
        self.cluster = described(cluster)
        self.open = [
            *(_of_request(each) for each in lives.requests()),
            *(each.action for each in lives.actions()),
        ]

    def _request(self, life: RequestLife) -> None:
        if self._on:
            self.ended.append(_of_request(life))

    def _action(self, life: ActionLife) -> None:
        if self._on:
            self.ended.append((life.action, life.result, life.ended_ns, life.lost))


def _of_request(life: RequestLife) -> tuple[object, ...]:
    return life.request, life.arrived_ns, life.outcome, life.ended_ns, life.reason, life.cold


@settings(max_examples=25)
@given(st.data())
def test_a_slice_tells_of_its_time_what_the_log_tells(
    log: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = choose_run(log)
    instants = st.integers(run.first_ns, run.last_ns)
    from_ns, to_ns = sorted((data.draw(instants), data.draw(instants) + 1))
    target = tmp_path_factory.mktemp("part") / "slice"
    try:
        found = slice_run(run, target, from_ns, to_ns)
    except LogProblem:
        assert not [now_ns for now_ns, _ in read_log(log) if from_ns <= now_ns < to_ns]
        return
    whole, part = Told(log, from_ns, to_ns), Told(target, from_ns, to_ns)
    assert part.ended == whole.ended
    assert part.cluster == whole.cluster, "estimates with their samples, timelines, pages, queues"
    assert sorted(map(repr, part.open)) == sorted(map(repr, whole.open))
    assert part.queued == whole.queued
    kept = list(read_log(target))[found.picture :]
    assert kept == [record for record in read_log(log) if from_ns <= record[0] < to_ns]
    assert len(kept) == found.records
    instants_there = [now_ns for now_ns, _ in read_entries(target)]
    assert instants_there == sorted(instants_there)


def test_a_slice_from_the_middle_begins_with_the_cluster_as_it_was(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    middle_ns = run.first_ns + 2 * SECOND
    found = slice_run(run, tmp_path / "part", middle_ns, run.last_ns + 1)
    entries = [entry for _, entry in read_log(tmp_path / "part")][: found.picture]
    assert [type(entry) for entry in entries[:10]] == [ModelAdded] * 8 + [WorkerJoined] * 2
    joined = {entry.worker: entry for entry in entries if isinstance(entry, WorkerJoined)}
    assert all(worker.resident and len(worker.prepared) == 8 for worker in joined.values())
    assert all(isinstance(entry, RequestArrived | Infer | Load) for entry in entries[10:])
    assert len(entries) > 12, "at 900 requests/s something is under way"


def test_a_slice_is_a_run_of_its_own_to_who_looks_for_runs(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    from_ns, to_ns = run.first_ns + SECOND, run.first_ns + 2 * SECOND
    slice_run(run, tmp_path / "part", from_ns, to_ns)
    (part,) = find_runs(tmp_path / "part")
    assert (part.first_ns, part.last_ns, part.whole) == (from_ns, to_ns - 1, False)
    assert part.unix_ns(from_ns) == run.unix_ns(from_ns)
    assert part.policy == "clockwork"
    assert 1 < len(part.paths) < len(run.paths), "segments are as the source's, so none grows longer"
    again = slice_run(part, tmp_path / "again", from_ns, to_ns)
    assert Told(tmp_path / "again", from_ns, to_ns).ended == Told(log, from_ns, to_ns).ended
    assert again.picture


def test_a_slice_from_the_beginning_is_decided_again_and_another_refused(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    slice_run(run, tmp_path / "first", run.first_ns, run.first_ns + SECOND)
    found = redecide(tmp_path / "first")
    assert found.difference is None
    assert found.commands > 300
    slice_run(run, tmp_path / "later", run.first_ns + SECOND, run.last_ns + 1)
    with pytest.raises(LogError, match="it is a slice from later on"):
        redecide(tmp_path / "later")


def test_what_if_takes_a_slice(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    slice_run(run, tmp_path / "part", run.first_ns + 2 * SECOND, run.last_ns + 1)
    recording = read_recording(tmp_path / "part")
    assert len(recording.models) == 8
    assert [len(joined.resident) > 0 for _, joined in recording.joins] == [True, True]
    happened = what_happened(recording)
    other = what_if(recording, msgspec.structs.replace(recording.scheduler, policy="edf"))
    assert other.summary.offered == happened.summary.offered > 500
    assert other.summary.goodput > 0.5 * other.summary.offered


def test_analysis_reads_a_slice(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    from_ns = run.first_ns + 2 * SECOND
    slice_run(run, tmp_path / "part", from_ns, run.last_ns + 1)
    whole = analyse_log(log, start_ns=from_ns).summary
    part = analyse_log(tmp_path / "part", start_ns=from_ns).summary
    assert (part.infers, part.loads, part.scheduler_rejected) == (
        whole.infers,
        whole.loads,
        whole.scheduler_rejected,
    )
    assert part.page_occupancy == pytest.approx(whole.page_occupancy)


def test_a_prepare_that_failed_stays_failed_in_a_slice(log: Path, tmp_path: Path) -> None:
    entries = list(read_entries(log))
    # What is prepared last is loaded by no command of the same instant.
    prepare = [entry for _, entry in entries if isinstance(entry, Prepare)][-1]
    failed_ns = 0
    with (tmp_path / "00000001.events").open("wb") as file:
        for now_ns, entry in entries:
            if isinstance(entry, Result) and entry.action_id == prepare.action_id:
                entry = msgspec.structs.replace(entry, status=Status.ENGINE_ERROR, detail="bad graph")  # noqa: PLW2901
                failed_ns = now_ns
            file.write(msgspec.msgpack.encode((now_ns, entry)))
    run = choose_run(tmp_path)
    slice_run(run, tmp_path / "part", failed_ns + 1, run.last_ns)
    told = [entry for _, entry in read_log(tmp_path / "part") if isinstance(entry, Prepare | Result)]
    assert isinstance(told[0], Prepare)
    assert (told[0].worker, told[0].model) == (prepare.worker, prepare.model)
    assert isinstance(told[1], Result)
    assert (told[1].action_id, told[1].detail) == (told[0].action_id, "bad graph")


def test_what_operators_set_stays_set_in_a_slice(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    asked = OperatorAsked("ann", PinModel("m-1"))
    with (tmp_path / "00000001.events").open("wb") as file:
        for index, record in enumerate(read_entries(log)):
            if index == 500:
                file.write(msgspec.msgpack.encode((record[0], asked)))
            file.write(msgspec.msgpack.encode(record))
    found = slice_run(choose_run(tmp_path), tmp_path / "part", run.last_ns - SECOND, run.last_ns)
    assert asked in [entry for _, entry in read_log(tmp_path / "part")][: found.picture]


def test_what_can_not_be_cut_is_refused_and_leaves_nothing(log: Path, tmp_path: Path) -> None:
    run = choose_run(log)
    target = tmp_path / "part"
    with pytest.raises(LogProblem, match=r"no record between 90\.000 s and 91\.000 s"):
        slice_run(run, target, run.first_ns + 90 * SECOND, run.first_ns + 91 * SECOND)
    assert not target.exists()
    slice_run(run, target, run.first_ns, run.last_ns)
    with pytest.raises(LogProblem, match="holds a log already; choose another folder"):
        slice_run(run, target, run.first_ns, run.last_ns)


def test_a_full_disk_leaves_no_part_of_a_slice(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.telemetry.slices._WRITE_BYTES", 10)
    run = choose_run(log)
    broken = msgspec.structs.replace(run, paths=(*run.paths[:2], tmp_path / "gone.events"))
    with pytest.raises(FileNotFoundError):
        slice_run(broken, tmp_path / "part", run.first_ns, run.last_ns)
    assert not (tmp_path / "part").exists()


def test_runs_are_told_apart(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, segment_bytes=100_000)
    first, second = find_runs(tmp_path)
    assert (first.number, second.number) == (1, 2)
    assert len(first.paths) == 1
    assert len(second.paths) > 5
    assert 3.0 < second.seconds < 5.0
    headers = [entry for _, entry in read_entries(tmp_path) if isinstance(entry, SegmentHeader)]
    assert [first.id, second.id] == [headers[0].run, headers[1].run]
    with pytest.raises(LogProblem, match="no run 3: it holds runs 1 to 2"):
        choose_run(tmp_path, 3)
    second.paths[0].unlink()
    assert [run.whole for run in find_runs(tmp_path)] == [True, False]


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogProblem, match="holds no event"):
        find_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        find_runs(tmp_path / "nowhere")
