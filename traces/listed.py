"""Arrivals listed in a CSV file: a row for each request, in order of time.

Columns, in any order: ``time_s``, seconds from the workload's start; ``model``; and, where requests differ,
``rows`` and ``slo_ms``, whose empty cells stand for the workload's own. ``none`` as an SLO is a request
without a deadline. Other columns are passed over, unless they look like a misspelled one that is missing.
The whole file is checked before anything is played, and kept as 24 bytes a request.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from mainspring.messages.choices import did_you_mean, nearest
from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.tracefile import TraceError, check_models, read_rows
from mainspring.traces.workload import Workload

COLUMNS = ("time_s", "model")
"""Columns that every file has."""
OWN = ("rows", "slo_ms")
"""Columns that a file may have."""
MAX_ARRIVALS = 20_000_000
"""A longer file is refused: half a gigabyte of memory."""
MAX_SECONDS = 10 * 366 * 24 * 3600
"""A later instant is refused, as one in another unit, or by the calendar, would be."""
MAX_ROWS = 1 << 20
MAX_SLO_MS = 24 * 3600 * 1e3
MOST_TITLED = 4
"""The most different deadlines that a heading names one by one."""
NO_DEADLINE = "none"
_NO_DEADLINE_NS = -1
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, eq=False)
class Listed(Workload):
    """The requests of a file, with rows and deadlines."""

    names: tuple[str, ...]
    times_ns: array[int]
    numbers: array[int]
    """Each request's model, as a place in ``names``."""
    rows: array[int]
    slos_ns: array[int]
    """-1 for none."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models that rows may name."""
        return self.names

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:  # noqa: ARG002 - nothing is drawn
        """Yield the requests as they are listed."""
        for place, time_ns in enumerate(self.times_ns):
            slo_ns = self.slos_ns[place]
            yield Arrival(
                time_ns,
                self.names[self.numbers[place]],
                self.rows[place],
                None if slo_ns == _NO_DEADLINE_NS else slo_ns,
            )


def read_listed(
    path: Path,
    models: Sequence[str],
    *,
    rows: int = 1,
    slo_ns: int | None = None,
    slos_ns: Mapping[str, int] | None = None,
) -> Listed:
    """Read a file of arrivals for these models, plain or gzipped.

    ``rows`` and ``slo_ns`` (``slos_ns`` for a model with one of its own) stand where a row says none. Raises
    `TraceError` naming file, line and column, and saying what would be right.
    """
    names = tuple(models)
    check_models(names)
    lines = read_rows(path)
    table = _Table(path, next(lines, (0, []))[1], names)
    usual_ns = [(slos_ns or {}).get(name, slo_ns) for name in names]
    listed = Listed(names, array("q"), array("i"), array("i"), array("q"))
    last_ns = 0
    for count, (line, cells) in enumerate(lines, start=1):
        if count > MAX_ARRIVALS:
            raise TraceError(f"{path}:{line}: has more than {MAX_ARRIVALS:,} requests; split the file")
        row = table.row(line, cells)
        time_ns = round(row.number("time_s", 0.0, MAX_SECONDS) * SECOND_NS)
        if time_ns < last_ns:
            raise TraceError(
                f"{path}:{line}: time_s is {row.text('time_s')}, before that of the row above; sort the rows"
                " by time_s"
            )
        last_ns = time_ns
        number = row.model()
        listed.times_ns.append(time_ns)
        listed.numbers.append(number)
        listed.rows.append(row.whole("rows", MAX_ROWS) or rows)
        listed.slos_ns.append(row.slo_ns(usual_ns[number]))
    if not listed.times_ns:
        raise TraceError(f"{path}: has no request: give a row for each below the header")
    return listed


def slo_title(path: Path, usual_ns: int | None) -> str:
    """Return which deadlines a file's requests have, for a heading: its own, or else ``usual_ns``.

    Raises `TraceError` for a file that can't be read; what is no deadline is passed over.
    """
    lines = read_rows(path)
    header = [cell.strip().lstrip("\ufeff").lower() for cell in next(lines, (0, []))[1]]
    place = header.index("slo_ms") if "slo_ms" in header else None
    found: set[float | None] = set()
    usual_ms = None if usual_ns is None else usual_ns / 1e6
    for _, cells in lines:
        text = "" if place is None or place >= len(cells) else cells[place].strip()
        found.add(usual_ms if not text else _parsed(float, text))
        if place is None:
            break
    some = sorted(each for each in found if each is not None)
    if not some:
        return "no SLO"
    slos = f"SLO {some[0]:g} ms" if len(some) == 1 else f"SLOs {', '.join(f'{each:g}' for each in some)} ms"
    if len(some) > MOST_TITLED:
        slos = f"SLOs from {some[0]:g} to {some[-1]:g} ms"
    return f"{slos}, or none" if None in found else slos


class _Table:
    """The positions of a file's columns."""

    def __init__(self, path: Path, header: Sequence[str], names: tuple[str, ...]) -> None:
        self.path = path
        self.names = names
        self.number_of = {name: number for number, name in enumerate(names)}
        columns = [cell.strip().lstrip("\ufeff").lower() for cell in header]
        self.place_of = {column: place for place, column in enumerate(columns)}
        missing = [column for column in COLUMNS if column not in self.place_of]
        if missing:
            raise TraceError(
                f"{path}:1: the header lacks {' and '.join(missing)}: it must have {', '.join(COLUMNS)}, and"
                f" may have {', '.join(OWN)}; it is {','.join(header[:6]) or 'empty'}"
            )
        self.width = len(columns)
        lacks = [column for column in OWN if column not in self.place_of]
        for column in (*COLUMNS, *OWN):
            if columns.count(column) > 1:
                raise TraceError(f"{path}:1: has a column twice: {column}")
        for column in columns:
            if column not in (*COLUMNS, *OWN) and (meant := nearest(column, lacks)):
                raise TraceError(f"{path}:1: has a column {column!r}; did you mean {meant!r}?")

    def row(self, line: int, cells: list[str]) -> _Row:
        """Return a row; raise `TraceError` unless it has as many cells as the header."""
        if len(cells) != self.width:
            raise TraceError(f"{self.path}:{line}: has {len(cells)} columns, but the header has {self.width}")
        return _Row(self, line, cells)


class _Row:
    """One row, whose cells are read by column."""

    __slots__ = ("_cells", "_line", "_table")

    def __init__(self, table: _Table, line: int, cells: list[str]) -> None:
        self._table = table
        self._line = line
        self._cells = cells

    def text(self, column: str) -> str:
        """Return a cell; empty where the file does not have the column."""
        place = self._table.place_of.get(column)
        return "" if place is None else self._cells[place].strip()

    def number(self, column: str, least: float, most: float) -> float:
        """Return a number in a range."""
        value = _parsed(float, self.text(column))
        if value is None or not least <= value <= most:
            raise self._wrong(column, f"a number from {least:g} to {most:g}")
        return value

    def whole(self, column: str, most: int) -> int | None:
        """Return a whole number from 1; None for an empty cell."""
        if not self.text(column):
            return None
        value = _parsed(float, self.text(column))
        if value is None or not 1 <= value <= most or value != int(value):
            raise self._wrong(column, f"a whole number from 1 to {most}, or empty for the workload's")
        return int(value)

    def model(self) -> int:
        """Return the model's place among the workload's."""
        name = self.text("model")
        number = self._table.number_of.get(name)
        if number is None:
            hint = did_you_mean(name, self._table.names, f"there is {', '.join(self._table.names[:5])}")
            raise self._wrong("model", f"a model that the workload has{hint.rstrip('?')}")
        return number

    def slo_ns(self, usual_ns: int | None) -> int:
        """Return the SLO, -1 for none."""
        text = self.text("slo_ms")
        if text.lower() == NO_DEADLINE or (not text and usual_ns is None):
            return _NO_DEADLINE_NS
        if not text:
            return usual_ns or _NO_DEADLINE_NS
        value = _parsed(float, text)
        if value is None or not 0 < value <= MAX_SLO_MS:
            raise self._wrong(
                "slo_ms",
                f"a number greater than 0 and at most {MAX_SLO_MS:g}, none, or empty for the workload's",
            )
        return max(1, round(value * 1e6))

    def _wrong(self, column: str, right: str) -> TraceError:
        place = self._table.place_of[column] + 1
        return TraceError(
            f"{self._table.path}:{self._line}: {column} (column {place}) is {self.text(column)!r}, but it"
            f" must be {right}"
        )


def _parsed(kind: Callable[[str], Number], text: str) -> Number | None:
    try:
        value = kind(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
