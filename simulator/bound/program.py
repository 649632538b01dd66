"""The best batches of each model for itself, when costs are given: a dynamic program over its requests.

Requests of one model stand in the order of their arrival, with deadlines in the same order; then some best
schedule has only batches of adjacent requests. A model is resident from its first batch's first arrival
to its last batch's last one, and may leave and come back. All models are solved side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PLACED_AT_ONCE = 4_096
"""Rows of the table in which cheapest starts are looked for: bounds its memory."""


class Grid:
    """Buckets of equal length over a stretch of time."""

    def __init__(self, start_ns: int, end_ns: int, bucket_ns: int) -> None:
        self.start_ns = start_ns
        self.bucket_ns = bucket_ns
        self.count = max(1, -(-(end_ns - start_ns) // bucket_ns))
        self.edges_ns: Floats = start_ns + bucket_ns * np.arange(self.count + 1, dtype=np.float64)

    def usage(self, starts_ns: Floats, duration_ns: float) -> Floats:
        """Return the time used in each bucket, in buckets, by intervals of one duration."""
        begin = (starts_ns - self.start_ns) / self.bucket_ns
        end = np.minimum(begin + duration_ns / self.bucket_ns, self.count)
        return _below(end, self.count) - _below(begin, self.count)


def _below(instants: Floats, count: int) -> Floats:
    """Return for each bucket the sum over instants of the part of it that lies before the instant."""
    bucket = np.minimum(instants.astype(np.int64), count - 1)
    inside: Floats = np.bincount(bucket, weights=instants - bucket, minlength=count).astype(np.float64)
    beyond: Ints = np.bincount(bucket, minlength=count)[::-1].cumsum()[::-1]
    inside[:-1] += beyond[1:]
    return inside


class Prices:
    """A price for each nanosecond of device time, constant within a bucket."""

    def __init__(self, grid: Grid, per_ns: Floats) -> None:
        self.grid = grid
        self.per_ns = per_ns
        self.before: Floats = np.concatenate(([0.0], np.cumsum(per_ns) * grid.bucket_ns))
        self._least: dict[int, tuple[Floats, Floats]] = {}

    def until(self, at_ns: Floats) -> Floats:
        """Return what all time before these instants costs; nothing has a price outside the grid."""
        grid = self.grid
        place = np.clip((at_ns - grid.start_ns) / grid.bucket_ns, 0, grid.count)
        bucket = np.minimum(place.astype(np.int64), grid.count - 1)
        return self.before[bucket] + (place - bucket) * grid.bucket_ns * self.per_ns[bucket]

    def of(self, starts_ns: Floats, duration_ns: int) -> Floats:
        """Return what executions cost that begin at these instants."""
        return self.until(starts_ns + duration_ns) - self.until(starts_ns)

    def least_tables(self, duration_ns: int) -> tuple[Floats, Floats]:
        """Return range minima of the cost of executions that begin, and that end, at a bucket's edge."""
        tables = self._least.get(duration_ns)
        if tables is None:
            edges_ns = self.grid.edges_ns
            begins_ns = edges_ns - duration_ns
            ending = np.where(begins_ns >= self.grid.start_ns, self.of(begins_ns, duration_ns), np.inf)
            tables = _range_minima(self.of(edges_ns, duration_ns)), _range_minima(ending)
            self._least[duration_ns] = tables
        return tables


def _range_minima(values: Floats) -> Floats:
    """Return a table whose row k has at i the least of the 2^k values from i on."""
    levels, width = [values], 1
    while 2 * width <= len(values):
        level = levels[-1].copy()
        level[:-width] = np.minimum(level[:-width], levels[-1][width:])
        levels.append(level)
        width *= 2
    return np.stack(levels)


class _Instants:
    """Instants whose time before them is priced many times: where in the grid each lies."""

    def __init__(self, grid: Grid, at_ns: Floats) -> None:
        place = np.clip((at_ns - grid.start_ns) / grid.bucket_ns, 0, grid.count)
        self._bucket = np.minimum(place.astype(np.int64), grid.count - 1)
        self._inside_ns: Floats = (place - self._bucket) * grid.bucket_ns

    def priced(self, prices: Prices) -> Floats:
        """Return what all time before the instants costs, as `Prices.until`."""
        before: Floats = prices.before.take(self._bucket)
        return before + self._inside_ns * prices.per_ns.take(self._bucket)


class _Range:
    """Inclusive ranges of places in a table of `_range_minima`, looked up many times."""

    def __init__(self, low: Ints, high: Ints, places: int) -> None:
        high = np.minimum(high, places - 1)
        self._none = high < low
        self.low = np.clip(low, 0, places - 1)
        self.high = np.where(self._none, self.low - 1, high)
        width = self.high - self.low + 1
        level = np.log2(np.maximum(width, 1)).astype(np.int64)
        second = np.maximum(self.high - (1 << level) + 1, 0)
        self._one, self._other = level * places + self.low, level * places + second

    def least(self, table: Floats) -> Floats:
        """Return each range's least value, infinity for an empty one; ``table`` is of `_range_minima`."""
        least: Floats = np.minimum(table.take(self._one), table.take(self._other))
        least[self._none] = np.inf
        return least


class Windows:
    """All batches of a given number of one model's adjacent requests: when each may begin.

    The cost of an execution is piecewise linear in its begin, with a bend wherever it begins or ends at a
    bucket's edge; so its minimum over a window lies at such a bend or at one of the window's ends.
    """

    def __init__(self, grid: Grid, first_ns: Floats, last_ns: Floats, duration_ns: int) -> None:
        """The batches may begin within ``[first_ns, last_ns]``; an empty window is one of no batch."""
        self.duration_ns = duration_ns
        self._count = len(first_ns)
        self._rows = np.flatnonzero(last_ns >= first_ns)
        """The batches that are possible; what follows is of these alone."""
        self._first_ns, self._last_ns = first_ns[self._rows], last_ns[self._rows]
        self._grid = grid
        self._beginning = self._between(0)
        self._ending = self._between(duration_ns)
        self._ends = [
            (_Instants(grid, begins_ns), _Instants(grid, begins_ns + duration_ns))
            for begins_ns in (self._first_ns, self._last_ns)
        ]

    def _between(self, offset_ns: int) -> _Range:
        low, high = (
            (instants + offset_ns - self._grid.start_ns) / self._grid.bucket_ns
            for instants in (self._first_ns, self._last_ns)
        )
        return _Range(np.ceil(low).astype(np.int64), np.floor(high).astype(np.int64), self._grid.count + 1)

    def costs(self, prices: Prices) -> Floats:
        """Return the least cost of each batch; infinite for one that can't be in time."""
        costs: Floats = np.full(self._count, np.inf)
        if len(self._rows):
            beginning, ending = prices.least_tables(self.duration_ns)
            least = np.minimum(self._beginning.least(beginning), self._ending.least(ending))
            for begin, end in self._ends:
                least = np.minimum(least, end.priced(prices) - begin.priced(prices))
            costs[self._rows] = least
        return costs

    def cheapest(self, prices: Prices, rows: Ints, rng: np.random.Generator) -> Floats:
        """Return a begin of least cost for some of the possible batches, drawn among equal ones."""
        rows = np.searchsorted(self._rows, rows)
        parts = [rows[at : at + PLACED_AT_ONCE] for at in range(0, len(rows), PLACED_AT_ONCE)]
        return np.concatenate([self._cheapest(prices, part, rng) for part in parts])

    def _cheapest(self, prices: Prices, rows: Ints, rng: np.random.Generator) -> Floats:
        columns = [self._first_ns[rows, None], self._last_ns[rows, None]]
        for between, offset_ns in ((self._beginning, 0), (self._ending, self.duration_ns)):
            low, high = between.low[rows, None], between.high[rows, None]
            places = low + np.arange(max(0, int((high - low).max()) + 1))
            begins = self._grid.edges_ns[np.minimum(places, self._grid.count)] - offset_ns
            columns.append(np.where(places <= high, begins, columns[0]))
        begins = np.concatenate(columns, axis=1)
        costs = prices.of(begins, self.duration_ns)
        # Equal costs differ by rounding, and the same begin for all of them would overload it.
        noise = rng.random(costs.shape) * 1e-6
        best = np.argmin(costs + noise, axis=1)
        chosen: Floats = begins[np.arange(len(rows)), best]
        return chosen


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CHUNK = 4_096
"""Longer streams are cut; a batch across a cut may be counted on both sides, which only raises the bound."""


@dataclass(frozen=True)
class Problem:
    """One model's requests and what it pays."""

    gains: Floats
    """Gain of each batch, of shape (requests, largest batch): requests less cost of the batch of
    ``column + 1`` that ends with the request; minus infinity where there is none."""
    arrivals_ns: Floats
    start_ns: float
    hold: float
    """Cost of a nanosecond of residency."""
    enter: float
    """Cost of becoming resident."""
    resident: bool
    """True if it is resident at ``start_ns``, for nothing."""


@dataclass(frozen=True)
class Choice:
    """A model's choice at these costs."""

    batches: Ints
    """Batches, of shape (batches, 2): the last request's index, and the number of requests."""
    held_ns: float
    """Time for which it is resident."""
    loads: int


@dataclass(frozen=True)
class _Part:
    """Requests ``low`` to ``high`` of a problem, of which those before ``own`` are the last part's too."""

    problem: int
    low: int
    own: int
    high: int

    def paid_from_ns(self, problem: Problem) -> Floats:
        """Return since when each request's residency is paid for here: the last part pays for the overlap."""
        arrivals_ns = problem.arrivals_ns[self.low : self.high]
        return np.maximum(arrivals_ns, problem.arrivals_ns[self.own - 1]) if self.own else arrivals_ns


def solve(problems: Sequence[Problem]) -> tuple[float, list[Choice]]:
    """Return the sum of what all models gain at most, and what each of them does for it."""
    parts = _parts(problems)
    columns = _Columns(problems, parts)
    columns.fill()
    value = 0.0
    found: list[list[Choice]] = [[] for _ in problems]
    for place, part in enumerate(parts):
        value += columns.value(place)
        found[part.problem].append(columns.trace(place))
    return value, [_joined(choices) for choices in found]


def _parts(problems: Sequence[Problem]) -> list[_Part]:
    parts = [
        _Part(
            number, max(0, begin - problem.gains.shape[1] + 1), begin, min(begin + CHUNK, len(problem.gains))
        )
        for number, problem in enumerate(problems)
        for begin in range(0, len(problem.gains), CHUNK)
    ]
    return sorted(parts, key=lambda part: part.low - part.high)


def _joined(choices: list[Choice]) -> Choice:
    batches = np.concatenate([choice.batches for choice in choices])
    return Choice(batches, sum(choice.held_ns for choice in choices), sum(choice.loads for choice in choices))


class _Columns:
    """The program's tables: a column for each part, longest first, a row for each request.

    ``away`` is the most that can be gained up to a request if the model is not resident behind it;
    ``there`` if it is, with the cost of having been so since the beginning of time added back; ``ready``
    the better of staying and of coming back for the next request. Row ``most - 1`` is before the first.
    """

    def __init__(self, problems: Sequence[Problem], parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._problems = [problems[part.problem] for part in parts]
        self._most = max(problem.gains.shape[1] for problem in problems)
        lengths = np.array([part.high - part.low for part in parts])
        rows, width = int(lengths[0]), len(parts)
        self._live = width - np.searchsorted(lengths[::-1], np.arange(rows), side="right")
        self._gains = np.full((rows, width, self._most), -np.inf)
        held = np.zeros((rows + 1, width))
        for place, (part, problem) in enumerate(zip(parts, self._problems, strict=True)):
            count = part.high - part.low
            gains = problem.gains[part.low : part.high]
            self._gains[:count, place, : gains.shape[1]] = gains
            for row in range(min(count, self._most - 1)):
                self._gains[row, place, row + 1 :] = -np.inf
            held[:count, place] = problem.hold * (part.paid_from_ns(problem) - problem.start_ns)
            held[count:, place] = held[count - 1, place]
        self._held = held
        self._enter = np.array([problem.enter for problem in self._problems])
        shape = (rows + self._most, width)
        self._away, self._there, self._ready = (
            np.zeros(shape),
            np.full(shape, -np.inf),
            np.full(shape, -np.inf),
        )
        self._size = np.zeros((rows, width), np.int8)
        self._begin()

    def _begin(self) -> None:
        """Set what is true before each part's first request; a later part may begin in either state."""
        before = self._most - 1
        for place, (part, problem) in enumerate(zip(self._parts, self._problems, strict=True)):
            if part.own:
                self._there[before, place] = self._held[0, place]
            elif problem.resident:
                self._there[before, place] = 0.0
        self._ready[before] = np.maximum(
            self._there[before], self._away[before] - self._enter + self._held[0]
        )

    def fill(self) -> None:
        """Go through all requests once."""
        most = self._most
        for row, live in enumerate(self._live):
            at = row + most
            offers = self._ready[row:at, :live][::-1].T + self._gains[row, :live]
            size = offers.argmax(axis=1)
            served = offers[np.arange(live), size]
            stayed = self._there[at - 1, :live]
            better = served > stayed
            self._size[row, :live] = np.where(better, size + 1, 0)
            there = np.where(better, served, stayed)
            away = np.maximum(self._away[at - 1, :live], there - self._held[row, :live])
            self._there[at, :live], self._away[at, :live] = there, away
            self._ready[at, :live] = np.maximum(there, away - self._enter[:live] + self._held[row + 1, :live])

    def value(self, place: int) -> float:
        """Return what a part gains."""
        part = self._parts[place]
        return float(self._away[part.high - part.low + self._most - 1, place])

    def trace(self, place: int) -> Choice:
        """Return how a part gains it, from its last request back to its first."""
        part, problem, before = self._parts[place], self._problems[place], self._most - 1
        away, there = self._away[:, place].tolist(), self._there[:, place].tolist()
        sizes, held = self._size[:, place].tolist(), self._held[:, place].tolist()
        arrivals = part.paid_from_ns(problem).tolist()
        row, resident = part.high - part.low - 1, False
        batches, held_ns, loads, until_ns = [], 0.0, 0, 0.0
        while row >= 0:
            at = row + before + 1
            if not resident:
                if away[at] == away[at - 1]:
                    row -= 1
                    continue
                resident, until_ns = True, arrivals[row]
            if not sizes[row]:
                row -= 1
                continue
            batches.append((part.low + row, sizes[row]))
            row -= sizes[row]
            at = row + before + 1
            if there[at] < away[at] - problem.enter + held[row + 1]:
                resident, loads, held_ns = False, loads + 1, held_ns + until_ns - arrivals[row + 1]
        if resident:
            held_ns += until_ns - (arrivals[0] if part.own else problem.start_ns)
        return Choice(np.array(batches, np.int64).reshape(-1, 2), held_ns, loads)
