"""A file of lines: whole ones, rotated, and never waited for."""

from __future__ import annotations

import os
import resource
from collections import Counter
from pathlib import Path

import pytest

from mainspring.gateway import access_log as log_file
from mainspring.gateway.access_log import LogFile


class Written:
    """A file under test, with what it dropped."""

    def __init__(self, path: Path, max_bytes: int = 1 << 20, older_files: int = 2) -> None:
        self.path = path
        self.dropped: Counter[str] = Counter()
        self.file = LogFile(str(path), max_bytes, older_files, str.encode, self._drop)

    def _drop(self, lines: int) -> None:
        self.dropped["lines"] += lines

    def add(self, *lines: str) -> None:
        """Add lines and see them written."""
        for line in lines:
            self.file.add(line)
        self.file._write_waiting()

    def close(self) -> int:
        """Close it; return how many lines were dropped."""
        self.file.close(10)
        return self.dropped["lines"]


@pytest.fixture(autouse=True)
def written_by_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the writer's thread wait for the end: what is written before is what the test asks for."""
    monkeypatch.setattr(log_file, "_PAUSE_S", 60.0)


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    written = Written(tmp_path / "log")
    for number in range(1_000):
        written.file.add(f"line {number}")
    assert written.close() == 0
    assert written.path.read_text().splitlines() == [f"line {number}" for number in range(1_000)]


def test_it_goes_on_with_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    written = Written(tmp_path / "log")
    written.add("after")
    written.close()
    assert written.path.read_text() == "before\nafter\n"


def test_a_file_that_is_full_gets_a_number_and_the_oldest_goes(tmp_path: Path) -> None:
    written = Written(tmp_path / "log", max_bytes=10)
    for number in range(10):
        written.add(f"line {number}")
    written.close()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"log": "line 9\n", "log.1": "line 8\n", "log.2": "line 7\n"}


def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    written = Written(tmp_path / "log")
    written.add("one")
    written.path.rename(tmp_path / "moved")
    written.add("two")
    written.path.unlink()
    written.add("three")
    assert written.close() == 0
    assert (tmp_path / "moved").read_text() == "one\n"
    assert written.path.read_text() == "three\n"


def test_a_disk_that_is_full_costs_lines_which_are_counted() -> None:
    written = Written(Path("/dev/full"))
    written.add("one", "two", "three")
    assert written.close() == 3


def test_half_a_line_is_taken_back_and_the_rest_is_written_once_there_is_room(tmp_path: Path) -> None:
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    written = Written(tmp_path / "log")
    try:
        written.add("one")
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
        written.add("a line that is too long")
        assert written.path.read_text() == "one\n"
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        written.add("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert written.close() == 1
    assert written.path.read_text() == "one\ntwo\n"


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "MOST_WAITING", 3)
    written = Written(tmp_path / "log")
    for number in range(5):
        written.file.add(f"{number}")
    assert written.close() == 2
    assert written.path.read_text() == "0\n1\n2\n"


def test_a_pipe_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        Written(tmp_path / "pipe")
