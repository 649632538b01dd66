"""The runs of a log: each start of a controller, with its segments and when it was.

A log's instants are on the controller's monotonic clock, which starts again with the machine. Each segment's
header relates it to the calendar.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from mainspring.telemetry.entries import Entry, SegmentHeader
from mainspring.telemetry.log import HEADER_BYTES, last_instant_ns, read_segment, segment_header, segments

SLICE = "slice"
"""Key in ``SegmentHeader.about`` of a `SliceNote`: the log is a part of another."""


class LogProblem(ValueError):
    """A log does not hold what was asked for; the text says what it holds."""


class SliceNote(msgspec.Struct, frozen=True):
    """The range of a slice, as each of its headers has it."""

    of: str
    """Folder that it was cut from."""
    from_ns: int
    to_ns: int
    """End of the range that it holds whole: ``from_ns <= instant < to_ns``."""
    picture: int
    """Records before the first of that time, which rebuild the cluster as it was then."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a controller, as far as the log has it."""

    number: int
    """Number of the run, from 1, oldest first."""
    id: int
    """`SegmentHeader.run`."""
    whole: bool
    """True if the log has the run from its first record."""
    paths: tuple[Path, ...]
    first_ns: int
    """Instant of its first record; of a slice, where it was cut."""
    first_unix_ns: int
    last_ns: int
    """Instant of its last record; of a slice, no less than where it was cut."""
    size_bytes: int
    about: dict[str, Any]
    """Facts about the writer, as the run's first header has them."""

    @property
    def seconds(self) -> float:
        """Return the run's length in seconds."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def policy(self) -> str:
        """Name of the scheduling policy; empty if the writer was not a controller."""
        return str(self.about.get("scheduler", {}).get("policy", ""))

    def unix_ns(self, now_ns: int) -> int:
        """Return an instant of the run as Unix time."""
        return self.first_unix_ns + now_ns - self.first_ns

    def wall(self, now_ns: int) -> str:
        """Return an instant of the run for a person, in local time to the millisecond."""
        return wall(self.unix_ns(now_ns))


def wall(unix_ns: int) -> str:
    """Return a Unix time for a person, in local time to the millisecond."""
    return datetime.fromtimestamp(unix_ns / 1e9).isoformat(" ", timespec="milliseconds")


def find_runs(directory: Path | str) -> list[Run]:
    """Return the log's runs, oldest first.

    Raises OSError if the folder or a segment can't be read, and `LogProblem` if it holds no log.
    """
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"{directory} is not an event log: there is no such folder")
    found: list[list[tuple[Path, int, SegmentHeader]]] = []
    for path in segments(directory):
        header = segment_header(path)
        if header is None:
            continue
        if not found or header[1].first_of_run or header[1].run != found[-1][-1][2].run:
            found.append([])
        found[-1].append((path, *header))
    if not found:
        raise LogProblem(f"{directory} holds no event: it is not a log of a controller")
    return [_run(number, parts) for number, parts in enumerate(found, 1)]


def choose_run(directory: Path | str, number: int | None = None) -> Run:
    """Return a run by its number, the last without one; otherwise as `find_runs`.

    Raises `LogProblem` if the folder has no run of that number.
    """
    runs = find_runs(directory)
    if number is None:
        return runs[-1]
    if not 1 <= number <= len(runs):
        held = "one run, number 1" if len(runs) == 1 else f"runs 1 to {len(runs)}"
        raise LogProblem(f"{directory} has no run {number}: it holds {held}")
    return runs[number - 1]


def read_run(run: Run) -> Iterator[tuple[int, Entry]]:
    """Yield the records of one run, oldest first, headers included; one segment at a time is in memory."""
    for path in run.paths:
        yield from read_segment(path)


def slice_note(header: SegmentHeader) -> SliceNote | None:
    """Return what a slice says of itself; None if the log was not cut from another."""
    try:
        return msgspec.convert(header.about[SLICE], SliceNote)
    except (KeyError, msgspec.ValidationError):
        return None


def _run(number: int, parts: list[tuple[Path, int, SegmentHeader]]) -> Run:
    first_path, header_ns, header = parts[0]
    note = slice_note(header)
    first_ns = _first_ns(first_path, header_ns) if note is None else note.from_ns
    last_ns = last_instant_ns(parts[-1][0])
    if last_ns is None:
        last_ns = first_ns
    return Run(
        number=number,
        id=header.run,
        whole=header.first_of_run,
        paths=tuple(path for path, _, _ in parts),
        first_ns=first_ns,
        # A simulation's instants are not on the clock of the writer's first header: take that as its start.
        first_unix_ns=header.unix_ns + max(0, first_ns - header_ns),
        last_ns=last_ns if note is None else max(last_ns, note.to_ns - 1),
        size_bytes=sum(path.stat().st_size for path, _, _ in parts),
        about=header.about,
    )


def _first_ns(path: Path, header_ns: int) -> int:
    """Return the instant of a segment's first record behind its header, or the header's if there is none."""
    records = read_segment(path, at_most_bytes=HEADER_BYTES)
    return next((now_ns for now_ns, entry in records if not isinstance(entry, SegmentHeader)), header_ns)
