"""The number of rows of requests, where they are unlike: a distribution, drawn for each request.

Lognormal or Gaussian, with shares in the tail that are drawn evenly; a histogram in a CSV file with the
columns ``rows`` and ``count``; or the requests of a recorded event log. Ribbon (section 5.1) has a
heavy-tailed lognormal distribution of batch sizes, and a Gaussian one beside it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.events import RequestArrived
from mainspring.telemetry.log import read_log
from mainspring.traces.arrival import Arrival, WorkloadError
from mainspring.traces.source import Playable, Source
from mainspring.traces.tracefile import TraceError, read_header, read_rows

Counts = npt.NDArray[np.int64]
DRAWN = 1024
"""Requests whose rows are drawn at a time."""
MAX_ROWS = 1 << 20
COLUMNS = ("rows", "count")
"""Columns of a histogram's file."""
NEEDS = {
    "lognormal": ("mu", "sigma", "most"),
    "gaussian": ("mean", "deviation", "most"),
    "histogram": ("file",),
    "log": ("log",),
}
"""Fields that each kind can't be without."""
_OWN = {name for names in NEEDS.values() for name in names} - {"most"}


class RowsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution of rows. What is drawn is rounded, and cut to ``least`` and ``most``."""

    kind: Literal["lognormal", "gaussian", "histogram", "log"]
    mu: float | None = None
    """lognormal: mean of the logarithm."""
    sigma: float | None = None
    """lognormal: standard deviation of the logarithm."""
    mean: float | None = None
    """gaussian: mean, in rows."""
    deviation: float | None = None
    """gaussian: standard deviation, in rows."""
    file: str | None = None
    """histogram: CSV file with the columns ``rows`` and ``count``."""
    log: str | None = None
    """log: folder of an event log, whose last run's requests have each as often the rows that they had."""
    least: int = 1
    most: int | None = None
    """The most rows of a request; lognormal and gaussian need it."""
    tail: tuple[tuple[float, int, int], ...] = ()
    """(share of all requests, least, most): these have rows drawn evenly from least to most instead."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        needs = NEEDS[self.kind]
        missing = [name for name in needs if getattr(self, name) is None]
        if missing:
            raise ValueError(f"{self.kind} rows need {', '.join(missing)}")
        idle = sorted(name for name in _OWN if name not in needs and getattr(self, name) is not None)
        if idle:
            raise ValueError(f"{', '.join(idle)} would change nothing of {self.kind} rows: take it out")
        for name in ("mu", "sigma", "mean", "deviation"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and (name in ("mu", "mean") or value >= 0)):
                raise ValueError(f"{name} of rows is {value}; it must be a finite number from 0 up")
        most = MAX_ROWS if self.most is None else self.most
        if not 1 <= self.least <= most <= MAX_ROWS:
            raise ValueError(f"rows are from 1 to {MAX_ROWS}, least first, not {self.least} to {most}")
        for share, low, high in self.tail:
            if not (0 <= share <= 1 and 1 <= low <= high <= most):
                raise ValueError(
                    f"a tail is a share from 0 to 1 and rows from 1 to most ({most}), least first, not "
                    f"[{share:g}, {low}, {high}]"
                )
        if sum(share for share, _, _ in self.tail) > 1:
            raise ValueError("the shares of the tail are more than 1 together")


class Rows:
    """A distribution that can be drawn from: files are read."""

    def __init__(self, spec: RowsSpec, models: Collection[str]) -> None:
        """Read what the distribution needs; of a log, the requests to these models.

        Raises `WorkloadError` (`TraceError` for a bad file) that says what would be right, and OSError.
        """
        self._spec = spec
        self._values = np.zeros(0, np.int64)
        """Rows that occur in a histogram or a log, ascending."""
        self._ranks = np.zeros(0)
        """The shares of all requests that have at most as many."""
        if spec.kind in ("histogram", "log"):
            self._take(_counted(str(spec.log), models) if spec.log is not None else _listed(str(spec.file)))

    @property
    def largest(self) -> int:
        """The most rows that a request may have."""
        if self._spec.most is not None:
            return self._spec.most
        return max([int(self._values[-1]), self._spec.least, *[high for _, _, high in self._spec.tail]])

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """Draw the rows of some requests; what is drawn for them depends on their number alone."""
        spec = self._spec
        body, rank, which, within = rng.standard_normal(count), *rng.random((3, count))
        if spec.kind == "lognormal":
            found = np.exp(spec.mu + spec.sigma * body)  # type: ignore[operator]
        elif spec.kind == "gaussian":
            found = spec.mean + spec.deviation * body  # type: ignore[operator]
        else:
            found = self._values[np.searchsorted(self._ranks, rank, side="right")]
        most = MAX_ROWS if spec.most is None else spec.most
        rows: Counts = np.clip(np.rint(found), spec.least, most).astype(np.int64)
        end = 0.0
        for share, low, high in spec.tail:
            begin, end = end, end + share
            mine = (which >= begin) & (which < end)
            rows[mine] = low + np.floor(within[mine] * (high - low + 1)).astype(np.int64)
        return rows

    def _take(self, counts: Mapping[int, float]) -> None:
        values = sorted(counts)
        weights = np.array([counts[value] for value in values], np.float64)
        self._values = np.array(values, np.int64)
        self._ranks = np.cumsum(weights) / weights.sum()
        self._ranks[-1] = 1.0


def with_rows(workload: Playable, rows: Rows) -> Playable:
    """Return the workload with rows drawn for each request; what is drawn else stays as it is."""
    return _Drawn(workload, rows)


def _counted(folder: str, models: Collection[str]) -> Counter[int]:
    """Count the rows of a log's requests."""
    counts = Counter[int]()
    for _, event in read_log(Path(folder), last_run=True):
        if isinstance(event, RequestArrived) and event.model in models:
            counts[event.rows] += 1
    if not counts:
        raise WorkloadError(
            f"{folder} has no request to any of these models: log is the folder of a run's events, and "
            "models are called as in that run"
        )
    return counts


def _listed(file: str) -> dict[int, float]:
    """Read a histogram; raise `TraceError`."""
    path = Path(file)
    header = read_header(path)
    if not set(COLUMNS) <= set(header):
        raise TraceError(
            f"{path}:1: a histogram has the columns {', '.join(COLUMNS)}, not {', '.join(header)}"
        )
    at_rows, at_count = header.index("rows"), header.index("count")
    counts: dict[int, float] = {}
    for line, cells in itertools.islice(read_rows(path), 1, None):
        try:
            rows, count = int(cells[at_rows]), float(cells[at_count])
        except (ValueError, IndexError):
            rows, count = 0, math.nan
        if not (1 <= rows <= MAX_ROWS and count >= 0 and math.isfinite(count)):
            raise TraceError(
                f"{path}:{line}: rows is a whole number from 1 to {MAX_ROWS} and count a number from 0 up, "
                f"not {','.join(cells)}"
            )
        counts[rows] = counts.get(rows, 0.0) + count
    if not sum(counts.values()):
        raise TraceError(f"{path}: no count is above 0, so there is nothing to draw from")
    return {rows: count for rows, count in counts.items() if count}


class _Drawn:
    """A workload whose requests have rows by a distribution."""

    def __init__(self, workload: Playable, rows: Rows) -> None:
        self._workload = workload
        self._rows = rows

    @property
    def models(self) -> tuple[str, ...]:
        """Same as `Playable.models`."""
        return self._workload.models

    def source(self, rng: np.random.Generator) -> Source:
        """Same as `Playable.source`; rows have a generator of their own, so that arrivals are as without."""
        (own,) = rng.spawn(1)
        return _DrawnSource(self._workload.source(rng), self._rows, own)


class _DrawnSource:
    def __init__(self, source: Source, rows: Rows, rng: np.random.Generator) -> None:
        self._source = source
        self._rows = rows
        self._rng = rng
        self._drawn: list[int] = []
        self.next_ns = source.next_ns
        self.completed = source.completed
        self.done = source.done

    def take(self) -> Arrival:
        """Same as `Source.take`."""
        if not self._drawn:
            self._drawn = self._rows.draw(self._rng, DRAWN)[::-1].tolist()
        return msgspec.structs.replace(self._source.take(), rows=self._drawn.pop())
