"""The store in a file: compare and set, files that are torn, and another gateway that holds it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mainspring.gateway.stores.sqlite import SqliteStore
from mainspring.selection.stores.records import NOTHING, Erase, Job, Read, StoreAway, Stored, Write

WRITE = Write("app", "u", 0, 7, b"one")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "learnt.sqlite")


def test_a_record_is_written_if_its_version_is_the_expected_one(path: str) -> None:
    store = SqliteStore(path)
    other = WRITE._replace(application="other")
    outcome = store.perform(Job(reads=(Read("app", "u"),), writes=(WRITE, WRITE, other)))
    assert (outcome.read, outcome.conflicts) == ((NOTHING,), (None, Stored(7, b"one"), None))
    store.close()
    again = SqliteStore(path)
    changed = WRITE._replace(expected=7, token=8, record=b"two")
    outcome = again.perform(Job(writes=(changed, changed)))
    assert outcome.conflicts == (None, Stored(8, b"two"))
    erased = again.perform(Job(erasures=(Erase("app", "u"), Erase("app", "v")), reads=(Read("app", "u"),)))
    assert (erased.erased, erased.read) == ((Stored(8, b"two"), NOTHING), (NOTHING,))
    assert erased.epoch == outcome.epoch
    assert b"two" not in b"".join(each.read_bytes() for each in Path(path).parent.glob("*.sqlite"))


@pytest.mark.parametrize("torn", [b"no database at all" * 100, None])
def test_a_torn_file_is_set_aside_and_said_so(
    path: str, torn: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(path)
    writes = tuple(WRITE._replace(key=f"u{number}", record=bytes(900)) for number in range(40))
    epoch = store.perform(Job(writes=writes)).epoch
    store.close()
    data = Path(path).read_bytes()
    Path(path).write_bytes(torn or data[: len(data) // 2])
    with pytest.raises(StoreAway, match=r"is torn .* it is set aside as .*, and a new one begins"):
        store.perform(Job(reads=(Read("app", "u1"),)))
    assert "is torn" in caplog.text
    (aside,) = Path(path).parent.glob("*.torn-*")
    assert aside.read_bytes() == (torn or data[: len(data) // 2])
    outcome = store.perform(Job(reads=(Read("app", "u1"),)))
    assert outcome.read == (NOTHING,)
    assert outcome.epoch != epoch


def test_one_that_another_process_holds_is_away_and_comes_back(path: str) -> None:
    store = SqliteStore(path)
    store.perform(Job(writes=(WRITE,)))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreAway, match="locked"):
        store.perform(Job(writes=(WRITE,)))
    holder.execute("ROLLBACK")
    holder.close()
    assert store.perform(Job(writes=(WRITE,))).conflicts == (Stored(7, b"one"),)


def test_a_folder_that_is_not_there_is_no_torn_file(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "nowhere" / "learnt.sqlite"))
    with pytest.raises(StoreAway, match="unable to open"):
        store.perform(Job(reads=(Read("app", "u"),)))
    (tmp_path / "nowhere").mkdir()
    assert store.perform(Job(reads=(Read("app", "u"),))).read == (NOTHING,)
