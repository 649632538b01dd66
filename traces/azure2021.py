"""The Azure Functions trace of 2021: one row for each invocation (Zhang et al., SOSP '21).

Columns: app, func (unique within its app), end_timestamp and duration, both in seconds. An invocation
arrived at ``end_timestamp - duration``. The published file is almost in order of that instant; rows are
put in order in a buffer of bounded size, so that the file is streamed however long it is.
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
    header = [cell.strip().lstrip("\ufeff").lower() for cell in next(rows, (0, []))[1]]
    if tuple(header) != COLUMNS:
        raise TraceError(
            f"{path}:1: not the Azure 2021 schema: the header must be {','.join(COLUMNS)},"
            f" not {','.join(header[:6]) or 'nothing'}"
        )
    held: list[tuple[int, int, str, str]] = []
    emitted_ns: int | None = None
    for line, cells in rows:
        row = _parse(path, line, cells)
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


def _parse(path: Path, line: int, cells: list[str]) -> tuple[int, str, str]:
    if len(cells) != len(COLUMNS):
        raise TraceError(f"{path}:{line}: has {len(cells)} columns, but it must have {len(COLUMNS)}")
    seconds = []
    for column in (2, 3):
        try:
            value = float(cells[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (column == 3 and value < 0):
            raise TraceError(
                f"{path}:{line}: {COLUMNS[column]} (column {column + 1}) is {cells[column]!r}, but it must be"
                f" {'a number of seconds' if column == 2 else 'a number of seconds from 0 up'}"
            )
        seconds.append(value)
    return int((seconds[0] - seconds[1]) * SECOND_NS), cells[0], cells[1]
