"""The event log: what goes in comes out, bounded in size, whatever happens to the disk."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages.actions import Reject, Result, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import RequestArrived, RequestCancelled, Wakeup
from mainspring.telemetry import log
from mainspring.telemetry.entries import FORMAT, SegmentHeader
from mainspring.telemetry.log import EventLogWriter, last_instant_ns, read_entries, read_log, segments

ENTRIES = st.one_of(
    st.builds(RequestCancelled, st.integers(0, 2**64 - 1)),
    st.builds(
        RequestArrived,
        st.integers(0, 2**63),
        st.text(max_size=20),
        st.integers(1, 16),
        st.none() | st.integers(-(2**63), 2**63),
    ),
    st.builds(Unload, st.integers(1, 2**40), st.text(max_size=8), st.text(max_size=8)),
    st.builds(Reject, st.integers(0, 2**60), st.sampled_from(Reason), st.text(max_size=50), st.none()),
    st.builds(
        Result, st.integers(1, 99), st.text(max_size=8), st.sampled_from(Status), st.integers(), st.just(7)
    ).filter(lambda result: abs(result.begin_ns) < 2**63),
    st.just(Wakeup()),
)


def fill(directory: Path, count: int, segment_bytes: int = 2000, max_bytes: int = 10**9) -> EventLogWriter:
    writer = EventLogWriter(directory, segment_bytes, max_bytes)
    for number in range(count):
        writer.append(number, RequestCancelled(number))
    return writer


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**62), ENTRIES), max_size=40), st.integers(100, 1000))
def test_everything_comes_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, RequestCancelled]], segment_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    writer = EventLogWriter(directory, segment_bytes)
    for now_ns, entry in records:
        writer.append(now_ns, entry)
    writer.close()
    assert list(read_log(directory)) == records


def test_segments_are_cut_at_their_size_and_each_begins_with_a_header(tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path, 1000, about={"policy": "clockwork"})
    for number in range(200):
        writer.append(number, RequestCancelled(number))
    writer.close()
    assert len(segments(tmp_path)) > 3
    assert all(path.stat().st_size < 1000 + 100 for path in segments(tmp_path))
    headers = [entry for _, entry in read_entries(tmp_path) if isinstance(entry, SegmentHeader)]
    assert len(headers) == len(segments(tmp_path))
    assert [header.first_of_run for header in headers] == [True] + [False] * (len(headers) - 1)
    assert {header.run for header in headers} == {headers[0].run}
    assert all(header.about == {"policy": "clockwork"} for header in headers)


def test_the_oldest_segments_are_deleted_at_the_bound(tmp_path: Path) -> None:
    fill(tmp_path, 2000, segment_bytes=2000, max_bytes=8000).close()
    total_bytes = sum(path.stat().st_size for path in segments(tmp_path))
    assert 4000 < total_bytes <= 8000 + 100
    kept = [entry.request_id for _, entry in read_log(tmp_path) if isinstance(entry, RequestCancelled)]
    assert kept == list(range(kept[0], 2000))
    assert kept[0] > 0


def test_a_restart_begins_a_segment_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, 3).close()
    fill(tmp_path, 2).close()
    assert [path.name for path in segments(tmp_path)] == ["00000001.events", "00000002.events"]
    assert [now_ns for now_ns, _ in read_log(tmp_path)] == [0, 1, 2, 0, 1]
    headers = [entry for _, entry in read_entries(tmp_path) if isinstance(entry, SegmentHeader)]
    assert all(header.first_of_run for header in headers)
    assert headers[0].run != headers[1].run


def test_a_tail_cut_off_anywhere_costs_only_the_last_record(tmp_path: Path) -> None:
    fill(tmp_path, 20).close()
    fill(tmp_path, 1).close()
    path = segments(tmp_path)[0]
    whole = path.read_bytes()
    before = [now_ns for now_ns, _ in read_log(tmp_path)]
    for cut in range(1, 12):
        path.write_bytes(whole[:-cut])
        assert [now_ns for now_ns, _ in read_log(tmp_path)] == [*before[:19], 0]
        assert last_instant_ns(path) == before[18]


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 64, b"\xc1", b"\x93\x01\x02\xc1", b"\x92\x01\x81\xa4type\xa1x"]
)
def test_a_damaged_segment_is_read_up_to_the_damage(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 5).close()
    fill(tmp_path, 2).close()
    first = segments(tmp_path)[0]
    first.write_bytes(first.read_bytes() + garbage)
    assert [now_ns for now_ns, _ in read_log(tmp_path)] == [0, 1, 2, 3, 4, 0, 1]
    assert first.name in caplog.text
    assert last_instant_ns(first) == 4
    first.write_bytes(garbage)
    assert last_instant_ns(first) is None


def test_flush_makes_records_readable_while_the_log_is_open(tmp_path: Path) -> None:
    writer = fill(tmp_path, 4, segment_bytes=10**6)
    assert list(read_log(tmp_path)) == []
    writer.flush()
    assert len(list(read_log(tmp_path))) == 4
    writer.close()


def test_a_full_disk_switches_the_log_off_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = fill(tmp_path, 3, segment_bytes=10**6)
    writer.flush()
    monkeypatch.setattr(os, "write", _no_space)
    for number in range(3, 10):
        writer.append(number, RequestCancelled(number))
        writer.flush()
    monkeypatch.undo()
    writer.append(10, RequestCancelled(10))
    writer.close()
    assert writer.problem is not None
    assert "No space left" in writer.problem
    assert writer.dropped == 8
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert [now_ns for now_ns, _ in read_log(tmp_path)] == [0, 1, 2]


def test_a_folder_that_cannot_be_made_switches_the_log_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    writer = EventLogWriter(tmp_path / "file" / "log")
    writer.append(1, RequestCancelled(1))
    writer.close()
    assert writer.problem is not None
    assert writer.dropped == 1


def test_an_integer_that_no_record_can_hold_leaves_the_log_whole(tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path)
    writer.append(1, RequestCancelled(1))
    with pytest.raises(OverflowError):
        writer.append(2, RequestCancelled(2**70))
    writer.append(3, RequestCancelled(3))
    writer.close()
    assert [now_ns for now_ns, _ in read_log(tmp_path)] == [1, 3]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 200, 70_000])
def test_many_records_at_once_are_the_bytes_that_one_after_the_other_are(tmp_path: Path, count: int) -> None:
    records = [(number, RequestCancelled(number * 7)) for number in range(count)]
    one, all_ = EventLogWriter(tmp_path / "one"), EventLogWriter(tmp_path / "all")
    for now_ns, entry in records:
        one.append(now_ns, entry)
    assert all_.append_all(records) == 0
    for writer in (one, all_):
        writer.close()
    assert list(read_log(tmp_path / "all")) == list(read_log(tmp_path / "one")) == records


def test_many_records_at_once_keep_to_the_size_of_segments(tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path, 2000)
    records = [(number, RequestCancelled(number)) for number in range(500)]
    for start in range(0, 500, 50):
        assert writer.append_all(records[start : start + 50]) == 0
    writer.close()
    assert list(read_log(tmp_path)) == records
    assert max(path.stat().st_size for path in segments(tmp_path)) < 2000 + 100
    assert len(segments(tmp_path)) > 3


def test_of_many_records_at_once_only_what_no_record_can_hold_is_left_out(tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path)
    records = [(1, RequestCancelled(1)), (2, RequestCancelled(2**70)), (3, RequestCancelled(3))]
    assert writer.append_all(records) == 1
    writer.close()
    assert [now_ns for now_ns, _ in read_log(tmp_path)] == [1, 3]
    assert writer.append_all(records) == 0
    assert writer.dropped == 3, "the log is closed"


def test_bounds_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="segment_bytes=10, max_bytes=5"):
        EventLogWriter(tmp_path, 10, 5)


def test_a_log_of_a_later_release_is_refused_with_what_would_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(log, "FORMAT", FORMAT + 1)
        fill(tmp_path, 3).close()
    told = rf"version {FORMAT + 1} .* up to version {FORMAT}: read it with the release"
    with pytest.raises(log.NewerFormat, match=told):
        list(read_entries(tmp_path))


def test_reading_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not an event log"):
        list(read_log(tmp_path / "nowhere"))


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
