"""The store of applications in a file of SQLite, which several gateways of a host may share.

The file is in WAL mode. One that is torn is set aside under another name, which is said, and a new one
begins: its epoch is another, so that journals write what memory still has.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Final

from mainspring.selection.stores.records import NOTHING, Job, Outcome, StoreAway, Stored, Write

log = logging.getLogger("mainspring.gateway")

BUSY_S: Final = 0.25
"""How long it waits for another gateway that writes."""
_TORN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS epoch (value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS states (
    application TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (application, key)
) WITHOUT ROWID;
"""


class SqliteStore:
    """A store in a file; it is opened by the first job, in the thread that asks for it."""

    def __init__(self, path: str) -> None:
        """Keep it at ``path``, in a folder that is there."""
        self.path = path
        self._database: sqlite3.Connection | None = None
        self._epoch = 0

    def perform(self, job: Job) -> Outcome:
        """Do a job in one transaction; raise `StoreAway` if it can't be done now."""
        try:
            return self._perform(job)
        except sqlite3.DatabaseError as error:
            self.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _TORN:
                raise StoreAway(f"{self.path}: {error}", doubtful=True) from None
            said = self._set_aside(str(error))
            raise StoreAway(said, doubtful=False) from None

    def _perform(self, job: Job) -> Outcome:
        database = self._database or self._open()
        database.execute("BEGIN IMMEDIATE" if job.writes or job.erasures else "BEGIN")
        try:
            erased = [self._found(each.application, each.key) for each in job.erasures]
            database.executemany(
                "DELETE FROM states WHERE application = ? AND key = ?",
                [(each.application, each.key) for each in job.erasures],
            )
            read = [self._found(each.application, each.key) for each in job.reads]
            conflicts = [self._write(each) for each in job.writes]
            database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise
        return Outcome(self._epoch, tuple(erased), tuple(read), tuple(conflicts))

    def _found(self, application: str, key: str) -> Stored:
        assert self._database is not None
        row = self._database.execute(
            "SELECT version, record FROM states WHERE application = ? AND key = ?", (application, key)
        ).fetchone()
        return NOTHING if row is None else Stored(*row)

    def _write(self, write: Write) -> Stored | None:
        assert self._database is not None
        there = self._found(write.application, write.key)
        if there.version != write.expected:
            return there
        row = write.application, write.key, write.token, write.record
        self._database.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)", row)
        return None

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            # What is erased is overwritten, not only unlinked.
            database.execute("PRAGMA secure_delete = ON")
            ((fault,),) = database.execute("PRAGMA quick_check(1)").fetchall()
            if fault != "ok":
                raise _torn(fault)
            database.executescript(_TABLES)
            database.execute(
                "INSERT INTO epoch SELECT ? WHERE NOT EXISTS (SELECT 1 FROM epoch)", (secrets.randbits(62),)
            )
            (self._epoch,) = database.execute("SELECT value FROM epoch").fetchone()
        except BaseException:
            database.close()
            raise
        self._database = database
        return database

    def _set_aside(self, why: str) -> str:
        """Rename the file, and those of its log; return what is said of it."""
        aside = f"{self.path}.torn-{time.time_ns()}"
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{ending}").rename(f"{aside}{ending}")
        said = f"{self.path} is torn ({why}); it is set aside as {aside}, and a new one begins"
        log.error("what applications have learnt: %s", said)
        return said

    def close(self) -> None:
        """Close the file; the next job opens it again."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None


def _torn(fault: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(fault)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
