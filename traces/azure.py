"""The Azure Functions traces of 2019 (Shahrad et al., ATC '20) and 2021 (Zhang et al., SOSP '21).

2019 has the invocations of each function by the minute: HashOwner, HashApp, HashFunction, Trigger, then a
column for each minute of the day. Files derived from it are read by the names of their columns: one of the
four is enough, in any order, and a minute or count that is missing is zero. Clockwork, section 6.5, replays
"four or five function workloads for each model instance": functions are shuffled by seed and dealt round to
the models, so 4 bytes x minutes x models are kept, and while reading 8 bytes for each count.

2021 has a row for each invocation: app, func (unique within its app), end_timestamp and duration in seconds;
a derived file may lack ``app``. An invocation arrived at ``end_timestamp - duration``. Rows are put in that
order in a buffer of bounded size, so that a file of any length is streamed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.tracefile import TraceError, check_models, read_rows
from mainspring.traces.workload import Cut, Workload, check_factor, spread

MINUTE_NS = 60 * SECOND_NS
COLUMNS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
MAX_COUNT = 2**31 - 1
MOST_DIGITS = 32
MOST_MINUTES = 31 * 24 * 60
"""Most minutes from the first to the last of a file that lacks some."""
NOTHING = ("", "nan", "na", "null", "none")
"""Texts that stand for no count."""


@dataclass(frozen=True, eq=False)
class Azure2019(Workload):
    """Invocation counts of shape (minutes, models), scaled by ``factor``."""

    names: tuple[str, ...]
    counts: npt.NDArray[np.uint32]
    first_minute: int
    """The file's own number of the first minute."""
    functions: int
    """Number of functions that were dealt to the models."""
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_factor("rate", self.factor)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that functions were dealt to."""
        return self.names

    def scaled(self, factor: float) -> Workload:
        """Scale the counts themselves: no copies, no thinning of arrivals."""
        check_factor("rate", factor)
        return replace(self, factor=self.factor * factor)

    def cut(self, start_ns: int, end_ns: int) -> Workload:
        """Leave whole minutes before the start out at once, without drawing them."""
        skipped = min(max(start_ns, 0) // MINUTE_NS, len(self.counts))
        rest = replace(self, counts=self.counts[skipped:], first_minute=self.first_minute + skipped)
        return Cut(rest, start_ns - skipped * MINUTE_NS, end_ns - skipped * MINUTE_NS)

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Draw minute by minute, at uniform instants; the first minute begins at 0."""
        for minute, counts in enumerate(self.counts):
            drawn = self._scale(counts.astype(np.int64), rng)
            yield from spread(drawn, self.names, minute * MINUTE_NS, MINUTE_NS, rng)

    def _scale(self, counts: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        whole = int(self.factor)
        return counts * whole + rng.binomial(counts, self.factor - whole)


def read_azure2019(path: Path, models: Sequence[str], rng: np.random.Generator) -> Azure2019:
    """Read a file of invocations per minute and deal its functions to ``models``.

    Raises `TraceError` naming file, line and column.
    """
    names = tuple(models)
    check_models(names)
    rows = read_rows(path)
    header = _Header(path, next(rows, (0, []))[1])
    first, columns = header.first, header.minutes
    functions = [header.parse(line, cells) for line, cells in rows]
    if not functions:
        raise TraceError(f"{path}: has a header but no function")
    dealt = rng.permutation(len(functions))
    counts = np.zeros((columns, len(names)), np.uint32)
    order = rng.permutation(len(names))
    for turn, function in enumerate(dealt.tolist()):
        minute, count = functions[function]
        counts[minute, order[turn % len(names)]] += count
    return Azure2019(names, counts, first, len(dealt))


class _Header:
    """The columns of a file, by their names."""

    def __init__(self, path: Path, header: list[str]) -> None:
        """Raises `TraceError` unless there are a function's column and minutes, each once."""
        self._path = path
        self._width = len(header)
        names = [cell.strip().lstrip("\ufeff").lower() for cell in header]
        if not is_of_minutes(names):
            raise TraceError(
                f"{path}:1: not invocations per minute of the Azure 2019 schema: the header must have one of"
                f" {', '.join(COLUMNS)} and a column for each minute, named by its number, not"
                f" {','.join(header[:6]) or 'nothing'}"
            )
        numbered = [
            (minute, place) for place, name in enumerate(names) if (minute := _minute(name)) is not None
        ]
        numbered.sort()
        for (minute, place), (other, second) in pairwise(numbered):
            if minute == other:
                raise TraceError(
                    f"{path}:1: minute {minute} is there twice, in columns {place + 1} and {second + 1}"
                )
        self.first = numbered[0][0]
        self.minutes = numbered[-1][0] - self.first + 1
        """Number of minutes from the first to the last, those that are missing among them."""
        if self.minutes > max(MOST_MINUTES, len(numbered)):
            raise TraceError(
                f"{path}:1: its minutes go from {self.first} to {numbered[-1][0]}; a file with gaps may have"
                f" at most {MOST_MINUTES:,}"
            )
        self._places = [place for _, place in numbered]
        self._minutes = np.array([minute - self.first for minute, _ in numbered], np.int32)

    def parse(self, line: int, cells: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
        """Return a function's minutes with invocations, from 0, and their counts."""
        if len(cells) != self._width:
            raise TraceError(
                f"{self._path}:{line}: has {len(cells)} columns, but the header has {self._width}"
            )
        told = [cells[place] for place in self._places]
        try:
            counts = np.array(list(map(int, told)), np.int64)
        except (ValueError, OverflowError):
            counts = np.array([-1 if (count := _whole(each)) is None else count for each in told], np.int64)
        if counts.min() < 0 or counts.max() > MAX_COUNT:
            raise self._bad_count(line, cells)
        found = np.flatnonzero(counts)
        return self._minutes[found], counts[found].astype(np.uint32)

    def _bad_count(self, line: int, cells: list[str]) -> TraceError:
        for minute, place in zip(self._minutes.tolist(), self._places, strict=True):
            if _whole(cells[place]) is None:
                return TraceError(
                    f"{self._path}:{line}: minute {self.first + minute} (column {place + 1}) is"
                    f" {cells[place]!r}, but it must be a count from 0 to {MAX_COUNT}"
                )
        return TraceError(f"{self._path}:{line}: its counts cannot be read as integers")


def is_of_minutes(header: Sequence[str]) -> bool:
    """Say whether a header, stripped and in lower case, is one of invocations per minute."""
    lead = {name.lower() for name in COLUMNS}
    return bool(lead & set(header)) and any(_minute(cell) is not None for cell in header)


def _minute(name: str) -> int | None:
    return None if name in NOTHING else _whole(name)


def _whole(cell: str) -> int | None:
    """Return a whole number, which other programs may have written as ``3.0`` or, for none, left out."""
    text = cell.strip()
    if text.lower() in NOTHING:
        return 0
    if text.isdecimal():
        return int(text) if len(text) <= MOST_DIGITS and int(text) <= MAX_COUNT else None
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value <= MAX_COUNT and value == int(value) else None


COLUMNS_2021 = ("app", "func", "end_timestamp", "duration")
MAX_SECONDS = 1e11
"""Largest instant that is accepted, in seconds; by the calendar, in the year 5138."""
REORDER_ROWS = 65_536
"""Rows that are held to be put in order: more than ten hours of the published file."""


@dataclass(frozen=True)
class Azure2021(Workload):
    """A file that is streamed again at each play; functions are dealt round to ``names`` as they appear."""

    path: Path
    names: tuple[str, ...]
    origin_ns: int
    """Arrival of the file's earliest invocation, which plays at 0."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models that functions are dealt to."""
        return self.names

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Stream the file; the models are shuffled by ``rng`` before functions are dealt to them."""
        order = rng.permutation(len(self.names)).tolist()
        dealt: dict[tuple[str, str], str] = {}
        for time_ns, app, func in _in_order(self.path):
            model = dealt.get((app, func))
            if model is None:
                model = dealt[app, func] = self.names[order[len(dealt) % len(order)]]
            yield Arrival(time_ns - self.origin_ns, model)


def read_azure2021(path: Path, models: Sequence[str]) -> Azure2021:
    """Open a file of invocations; raises `TraceError` for one that does not begin as it should.

    Rows further down are checked when they are played, with file, line and column in the error.
    """
    names = tuple(models)
    check_models(names)
    first = next(_in_order(path), None)
    if first is None:
        raise TraceError(f"{path}: has a header but no invocation")
    return Azure2021(path, names, first[0])


def _in_order(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield ``(arrival_ns, app, func)`` in order of arrival."""
    rows = read_rows(path)
    parse = _Columns(path, next(rows, (0, []))[1]).parse
    held: list[tuple[int, int, str, str]] = []
    emitted_ns: int | None = None
    for line, cells in rows:
        row = parse(line, cells)
        if emitted_ns is not None and row[0] < emitted_ns:
            raise TraceError(
                f"{path}:{line}: arrived before an invocation {REORDER_ROWS} rows earlier; sort the file by"
                " end_timestamp - duration"
            )
        heapq.heappush(held, (row[0], line, row[1], row[2]))
        if len(held) > REORDER_ROWS:
            time_ns, _, app, func = heapq.heappop(held)
            emitted_ns = time_ns
            yield time_ns, app, func
    while held:
        time_ns, _, app, func = heapq.heappop(held)
        yield time_ns, app, func


class _Columns:
    """The positions of a file's columns, by the names in its header."""

    def __init__(self, path: Path, header: list[str]) -> None:
        """Raises `TraceError` that says which column is missing."""
        self._path = path
        self._width = len(header)
        names = [cell.strip().lstrip("\ufeff").lower() for cell in header]
        missing = [name for name in COLUMNS_2021[1:] if name not in names]
        if missing:
            raise TraceError(
                f"{path}:1: not the Azure 2021 schema: the header must have {','.join(COLUMNS_2021)}, and"
                f" lacks {', '.join(missing)}; it is {','.join(header[:6]) or 'nothing'}"
            )
        self._app = names.index("app") if "app" in names else None
        self._func, self._end, self._duration = (names.index(name) for name in COLUMNS_2021[1:])

    def parse(self, line: int, cells: list[str]) -> tuple[int, str, str]:
        """Return when an invocation arrived, in nanoseconds, its app and its function."""
        if len(cells) != self._width:
            raise TraceError(
                f"{self._path}:{line}: has {len(cells)} columns, but the header has {self._width}"
            )
        app = "" if self._app is None else cells[self._app]
        end = self._seconds(line, cells, self._end)
        arrived = end - self._seconds(line, cells, self._duration)
        return int(arrived * SECOND_NS), app, cells[self._func]

    def _seconds(self, line: int, cells: list[str], place: int) -> float:
        try:
            value = float(cells[place])
        except ValueError:
            value = math.nan
        least = 0.0 if place == self._duration else -MAX_SECONDS
        if not least <= value <= MAX_SECONDS:
            name, up = ("duration", " from 0 up") if place == self._duration else ("end_timestamp", "")
            raise TraceError(
                f"{self._path}:{line}: {name} (column {place + 1}) is {cells[place]!r}, but it must be a"
                f" number of seconds{up}"
            )
        return value
