"""A recorded run: any instant of it shows what playing it from its beginning would, and in bounded memory."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from mainspring.console import checkpoints
from mainspring.console.checkpoints import LogReader
from mainspring.console.live import Observed
from mainspring.console.recorded import Recording
from mainspring.messages.events import ModelAdded, ModelRemoved, OperatorAsked, Wakeup, WorkerJoined
from mainspring.messages.operating import DrainWorker, OperatorCommand, PinModel, ResumeWorker
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import EventLogWriter, read_entries, segments
from mainspring.telemetry.runs import LogProblem
from tests.cluster.replica import Replica
from tests.controller.peers import spec
from tests.fuzz import seeded
from tests.telemetry.recordings import EVENTFUL, record

BUDGET_NS = 5_000_000
LOAD = msgspec.structs.replace(EVENTFUL, duration_s=2.0)


class Screen:
    """Takes records in as a view does."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.now_ns = 0
        self.resets = 0

    def reset(self, *, keep_history: bool) -> None:
        assert not keep_history
        self.resets += 1
        self.replica, self.now_ns = Replica(), 0

    def take(self, now_ns: int, entry: Observed) -> None:
        self.now_ns = max(self.now_ns, now_ns)
        self.replica.take(now_ns, entry)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        # Each look takes a moment, so that work is cut into slices.
        self.now_ns += 50_000
        return self.now_ns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments."""
    return record(tmp_path_factory.mktemp("log"), LOAD, segment_bytes=200_000)


def settle(recording: Recording) -> None:
    """Work until what is shown is what was asked for."""
    recording.seek(playing=False)
    for _ in range(100_000):
        recording.work(BUDGET_NS)
        if recording.state == "recorded":
            return
    raise AssertionError("it does not come to an end")


def played(folder: Path, at_ns: int) -> dict[str, object]:
    """What stands at an instant, by every record before it."""
    replica = Replica()
    for now_ns, entry in read_entries(folder):
        if now_ns <= at_ns or isinstance(entry, SegmentHeader):
            replica.take(now_ns, entry)
    return replica.stands()


@seeded(4)
def test_any_instant_shows_what_playing_up_to_it_would(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "STEP_BYTES", 50_000)
    monkeypatch.setattr(checkpoints, "MOST", 1_000)
    screen = Screen()
    recording = Recording(folder, screen, clock=Clock())
    assert len(segments(folder)) > 2
    randomly = random.Random(seed)
    for _ in range(6):
        at_ns = randomly.randrange(recording.run.first_ns, recording.run.last_ns)
        recording.seek(at_ns)
        settle(recording)
        assert recording.at_ns == screen.now_ns == at_ns
        assert screen.replica.stands() == played(folder, at_ns)
    assert screen.resets > 1
    recording.close()


def test_it_plays_as_fast_as_it_is_told_and_stops_at_the_end(folder: Path) -> None:
    clock, screen = Clock(), Screen()
    recording = Recording(folder, screen, clock=clock)
    settle(recording)
    assert recording.at_ns == recording.run.first_ns
    recording.seek(speed=2.0, playing=True)
    clock.now_ns += 500_000_000
    while recording.state == "catching_up" or recording.at_ns == recording.run.first_ns:
        recording.work(BUDGET_NS)
    passed_ns = recording.at_ns - recording.run.first_ns
    assert 1_000_000_000 <= passed_ns < 1_100_000_000
    while recording.playing:
        clock.now_ns += 100_000_000
        recording.work(BUDGET_NS)
    settle(recording)
    assert recording.at_ns == recording.run.last_ns
    assert screen.resets == 1
    assert screen.replica.stands() == played(folder, recording.run.last_ns)


def test_forward_by_a_little_goes_on_from_what_is_shown(folder: Path) -> None:
    screen = Screen()
    recording = Recording(folder, screen, clock=Clock())
    for step_ns in range(0, 500_000_000, 50_000_000):
        recording.seek(recording.run.first_ns + step_ns)
        settle(recording)
    assert screen.resets == recording.jumps == 1
    recording.seek(recording.run.first_ns)
    settle(recording)
    assert recording.jumps == 2


def test_what_operators_set_holds_at_a_later_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "STEP_BYTES", 1_000)
    monkeypatch.setattr(checkpoints, "MOST", 1_000)
    log = EventLogWriter(tmp_path, 64 << 20)
    commands: list[OperatorCommand] = [
        DrainWorker("w0"),
        PinModel("a"),
        DrainWorker("w1"),
        ResumeWorker("w0"),
    ]
    for name in ("a", "gone"):
        log.append(0, ModelAdded(spec(name)))
    for name in ("w0", "w1"):
        log.append(0, WorkerJoined(name, "cpu", 8))
    for at_ns, command in enumerate(commands):
        log.append(at_ns, OperatorAsked("ada", command))
    log.append(3, OperatorAsked("ada", PinModel("gone")))
    log.append(3, ModelRemoved("gone"))
    for at_ns in range(4, 20_000):
        log.append(at_ns, Wakeup())
    log.close()
    screen = Screen()
    recording = Recording(tmp_path, screen, clock=Clock())
    recording.seek(19_000)
    settle(recording)
    cluster = screen.replica.cluster
    asked = [event.command for _, event in cluster.operations.values()]
    assert asked == [PinModel("a"), DrainWorker("w1"), ResumeWorker("w0")]
    assert (list(cluster.drained), list(cluster.pinned)) == (["w1"], ["a"])


def test_an_instant_outside_the_run_means_its_nearest_end(folder: Path) -> None:
    recording = Recording(folder, Screen(), clock=Clock())
    recording.seek(-5)
    assert recording.at_ns == recording.run.first_ns
    recording.seek(1 << 62)
    assert recording.at_ns == recording.run.last_ns


@pytest.mark.parametrize("speed", [0.0, -1.0, 1e9, float("nan")])
def test_a_speed_that_is_none_is_refused(folder: Path, speed: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and at most 1000"):
        Recording(folder, Screen(), clock=Clock()).seek(speed=speed)


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogProblem, match="holds no event"):
        Recording(tmp_path, Screen())


def test_damage_ends_its_segment_and_no_other(folder: Path, tmp_path: Path) -> None:
    for path in segments(folder):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    paths = segments(tmp_path)
    data = bytearray(paths[1].read_bytes())
    half = len(data) // 2
    paths[1].write_bytes(data[:half] + b"\xc1" * 40)
    expected = list(read_entries(tmp_path))
    reader, found = LogReader(paths), []
    while records := reader.piece():
        found += records
    assert found == expected


def test_notes_are_no_more_than_their_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "STEP_BYTES", 1)
    monkeypatch.setattr(checkpoints, "MOST", 5)
    recording = Recording(folder, Screen(), clock=Clock())
    recording.seek(recording.run.last_ns)
    settle(recording)
    while not recording._checkpoints.ended:
        recording.work(BUDGET_NS)
    assert 1 < len(recording._checkpoints._found) <= 6
