"""The Azure Functions trace of 2021: one row for each invocation (Zhang et al., SOSP '21).

Columns: app, func (unique within its app), end_timestamp and duration, both in seconds, in any order and
beside others; a derived file may lack ``app``. An invocation arrived at ``end_timestamp - duration``. The
published file is almost in order of that instant; rows are put in order in a buffer of bounded size, so that
the file is streamed however long it is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.tracefile import TraceError, check_models, read_rows
from mainspring.traces.workload import Workload

COLUMNS = ("app", "func", "end_timestamp", "duration")
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
        missing = [name for name in COLUMNS[1:] if name not in names]
        if missing:
            raise TraceError(
                f"{path}:1: not the Azure 2021 schema: the header must have {','.join(COLUMNS)}, and lacks"
                f" {', '.join(missing)}; it is {','.join(header[:6]) or 'nothing'}"
            )
        self._app = names.index("app") if "app" in names else None
        self._func, self._end, self._duration = (names.index(name) for name in COLUMNS[1:])

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
