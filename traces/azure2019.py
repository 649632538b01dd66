"""The Azure Functions trace of 2019: invocations per minute of each function (Shahrad et al., ATC '20).

Columns: HashOwner, HashApp, HashFunction, Trigger, then one for each minute, named by the minute of the
day (not every file begins at 1). Clockwork, section 6.5, replays "four or five function workloads for
each model instance": functions are shuffled by seed and dealt round to the models.

A function's identity does not matter after it is dealt: 4 bytes x minutes x models are kept, whatever the
number of functions and invocations; while reading, also 8 bytes for each count that is not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.tracefile import TraceError, check_models, read_rows
from mainspring.traces.workload import Cut, Workload, check_factor, spread

MINUTE_NS = 60 * SECOND_NS
COLUMNS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Azure2019(Workload):
    """Invocation counts of shape (minutes, models), scaled by ``factor``."""

    names: tuple[str, ...]
    counts: npt.NDArray[np.uint32]
    first_minute: int
    """The file's own number of the first minute."""
    functions: int
    """How many functions were dealt to the models."""
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
    first, columns = _check_header(path, next(rows, (0, []))[1])
    functions = [_parse(path, line, cells, first, columns) for line, cells in rows]
    if not functions:
        raise TraceError(f"{path}: has a header but no function")
    dealt = rng.permutation(len(functions))
    counts = np.zeros((columns, len(names)), np.uint32)
    order = rng.permutation(len(names))
    for turn, function in enumerate(dealt.tolist()):
        minute, count = functions[function]
        counts[minute, order[turn % len(names)]] += count
    return Azure2019(names, counts, first, len(dealt))


def _check_header(path: Path, header: list[str]) -> tuple[int, int]:
    """Return the number of the first minute and how many there are."""
    lead = [cell.strip().lstrip("\ufeff").lower() for cell in header[:4]]
    if lead != [name.lower() for name in COLUMNS]:
        raise TraceError(
            f"{path}:1: not invocations per minute of the Azure 2019 schema: the header must begin with"
            f" {','.join(COLUMNS)}, not {','.join(header[:4]) or 'nothing'}"
        )
    minutes = header[4:]
    if not minutes or not minutes[0].strip().isdecimal():
        raise TraceError(f"{path}:1: column 5 must be the number of the first minute, not {header[4:5]}")
    first = int(minutes[0])
    for number, cell in enumerate(minutes):
        if cell.strip() != str(first + number):
            raise TraceError(
                f"{path}:1: column {number + 5} is {cell!r}, but minutes must follow each other and this"
                f" one must be {first + number}"
            )
    return first, len(minutes)


def _parse(
    path: Path, line: int, cells: list[str], first: int, columns: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
    """Return a function's minutes with invocations, from 0, and their counts."""
    if len(cells) != columns + 4:
        raise TraceError(f"{path}:{line}: has {len(cells)} columns, but the header has {columns + 4}")
    try:
        counts = np.array(list(map(int, cells[4:])), np.int64)
    except (ValueError, OverflowError):
        counts = np.full(columns, -1)
    if counts.min() < 0 or counts.max() > MAX_COUNT:
        raise _bad_count(path, line, cells, first)
    minutes = np.flatnonzero(counts)
    return minutes.astype(np.int32), counts[minutes].astype(np.uint32)


def _bad_count(path: Path, line: int, cells: list[str], first: int) -> TraceError:
    for number, cell in enumerate(cells[4:]):
        if not (cell.strip().isdecimal() and int(cell) <= MAX_COUNT):
            return TraceError(
                f"{path}:{line}: minute {first + number} (column {number + 5}) is {cell!r}, but it must be a"
                f" count from 0 to {MAX_COUNT}"
            )
    return TraceError(f"{path}:{line}: its counts cannot be read as integers")
