"""Files that were found right are not hashed again after a restart, and nobody else can say that they are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mainspring.worker.engines import known_files
from mainspring.worker.engines.known_files import SETTLED_NS, KnownFiles, State, default_path

SHA = "0123456789abcdef" * 4
OLD_NS = 1_700_000_000_000_000_000


def state(inode: int, changed_ns: int = OLD_NS) -> State:
    return 1, inode, 100, OLD_NS, changed_ns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own" / "checked"


def test_what_was_found_right_is_known_after_a_restart(path: Path) -> None:
    first = KnownFiles(path)
    first.add(state(1), SHA)
    first.close()
    second = KnownFiles(path)
    assert (state(1), SHA) in second
    for altered in ((state(2), SHA), (state(1, OLD_NS + 1), SHA), (state(1), "f" * 64)):
        assert altered not in second


def test_workers_of_a_host_remember_together(path: Path) -> None:
    workers = [KnownFiles(path) for _ in range(3)]
    for inode in range(60):
        workers[inode % 3].add(state(inode), SHA)
    assert all((state(inode), SHA) in KnownFiles(path) for inode in range(60))


def test_a_file_that_has_just_changed_is_known_until_the_restart_only(path: Path) -> None:
    known, now_ns = KnownFiles(path), time.time_ns()
    known.add(state(1, now_ns), SHA)
    known.add(state(2, now_ns - 2 * SETTLED_NS), SHA)
    assert (state(1, now_ns), SHA) in known
    after = KnownFiles(path)
    assert (state(1, now_ns), SHA) not in after
    assert (state(2, now_ns - 2 * SETTLED_NS), SHA) in after


def test_lines_that_cant_be_read_are_passed_over(path: Path) -> None:
    KnownFiles(path).add(state(1), SHA)
    with path.open("ab") as file:
        file.write(b"\xff\x00 nonsense\n1 2 3\n" + b"9" * 500 + b"\n1 1 100 torn")
    assert (state(1), SHA) in KnownFiles(path)


def test_another_users_word_counts_for_nothing(path: Path, tmp_path: Path) -> None:
    KnownFiles(path).add(state(1), SHA)
    path.chmod(0o622)
    assert (state(1), SHA) not in KnownFiles(path)
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert (state(1), SHA) not in KnownFiles(path)
    path.parent.chmod(0o700)
    link = tmp_path / "own" / "link"
    link.symlink_to(path)
    assert (state(1), SHA) not in KnownFiles(link)
    assert (state(1), SHA) in KnownFiles(path)


def test_a_place_that_cant_be_written_hinders_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    known = KnownFiles(tmp_path / "file" / "checked")
    known.add(state(1), SHA)
    assert (state(1), SHA) in known


def test_the_bound_holds_over_restarts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_files, "MOST", 10)
    known = KnownFiles(path)
    for inode in range(25):
        known.add(state(inode), SHA)
    assert [inode for inode in range(25) if (state(inode), SHA) in KnownFiles(path)] == list(range(15, 25))
    with path.open("ab") as file:
        file.write(b"1\n" * 10_000)
    KnownFiles(path)
    assert path.stat().st_size == 0, "it begins again"


def test_each_store_has_a_file_of_its_own(tmp_path: Path) -> None:
    one, other = default_path(tmp_path / "one"), default_path(tmp_path / "other")
    assert one != other
    assert one.parent == other.parent
    assert str(os.geteuid()) in one.parent.name
