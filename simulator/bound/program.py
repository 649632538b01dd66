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
