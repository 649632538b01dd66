"""The searches by name, what each is given, the pools tried, and the two simple searches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from mainspring.planner.estimate import Estimate, Estimator
from mainspring.planner.floor import Flags, Space
from mainspring.planner.problem import PlanError, Pool, Problem

Told = Callable[["Trials"], None]


class BudgetSpent(Exception):
    """The search may try no further pool."""


class Trials:
    """Evaluates pools for a search, and keeps what came of them."""

    def __init__(
        self,
        estimator: Estimator,
        attainment: float,
        *,
        most: int | None = None,
        record: Path | None = None,
        known: Sequence[Estimate] = (),
        told: Told | None = None,
    ) -> None:
        """``most`` evaluations are allowed. Each is added to the file ``record``; ``known`` are those that a
        record of the same search had (`read_record`). ``told`` is called after each."""
        self.tried: list[Estimate] = []
        """Estimates in the order in which the pools were evaluated."""
        self.attainment = attainment
        self.most = most
        self.best: Estimate | None = None
        """The cheapest that holds."""
        self._estimator = estimator
        self._record = record
        self._recorded = {each.pool: each for each in known}
        self._by_pool: dict[Pool, Estimate] = {}
        self._told = told

    def __contains__(self, pool: Pool) -> bool:
        return pool in self._by_pool

    def known(self, pool: Pool) -> Estimate | None:
        """Return the estimate of a pool that was tried; None if it was not."""
        return self._by_pool.get(pool)

    def evaluate(self, pool: Pool, *, whole: bool = False) -> Estimate:
        """Return the estimate of a pool, made if it is the first time; raise `BudgetSpent`."""
        if pool in self._by_pool:
            return self._by_pool[pool]
        if self.most is not None and len(self.tried) >= self.most:
            raise BudgetSpent
        known = self._recorded.get(pool)
        if known is None or (whole and not known.complete):
            known = self._estimator.evaluate(pool, whole=whole)
            if self._record is not None:
                with self._record.open("ab") as file:
                    file.write(msgspec.json.encode(known) + b"\n")
        self._by_pool[pool] = known
        self.tried.append(known)
        if known.holds(self.attainment) and (self.best is None or known.price < self.best.price):
            self.best = known
        if self._told is not None:
            self._told(self)
        return known

    @property
    def nearest(self) -> Estimate | None:
        """The pool with the greatest share in time, of equal ones the cheapest."""
        return max(self.tried, key=lambda each: (each.complete, each.attainment, -each.price), default=None)

    @property
    def violating(self) -> int:
        """Return the number of evaluated pools that did not hold."""
        return sum(not each.holds(self.attainment) for each in self.tried)


def read_record(path: Path) -> list[Estimate]:
    """Return the estimates of a search that was interrupted; a last line that is cut off is removed.

    So the search can go on with the file. Raises `PlanError` for a file that is not such a record.
    """
    found: list[Estimate] = []
    data = path.read_bytes()
    *lines, cut_off = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            found.append(msgspec.json.decode(line, type=Estimate))
        except msgspec.MsgspecError as error:
            raise PlanError(f"{path}:{number}: no estimate of a search ({error}); remove the file") from None
    if cut_off:
        os.truncate(path, len(data) - len(cut_off))
    return found


class Ending(msgspec.Struct, frozen=True):
    """The end of a search."""

    why: str
    proven: bool = False
    """True if every cheaper pool than the best is known not to hold."""


@dataclass(frozen=True, eq=False)
class Before:
    """The evaluations that were made before the load changed."""

    tried: tuple[Estimate, ...]
    best: Estimate
    """The pool that held at the least price then."""
    load: float
    """Load now as a multiple of the load then; above 0."""


@dataclass(frozen=True, eq=False)
class Task:
    """The task that a search is given."""

    problem: Problem
    space: Space
    possible: Flags
    """True for each pool of the space on which some scheduler could keep the promise."""
    trials: Trials
    seed: int = 0
    starts: tuple[Pool, ...] = ()
    """Pools to begin with; searches that need some draw others."""
    prior: Estimator | None = None
    """A quick estimator that may be off, where evaluations are dear."""
    before: Before | None = None
    """The search at another load that this one follows."""


Search = Callable[[Task], Ending]


def searches() -> Mapping[str, Search]:
    """Return the searches by name; the first is the default."""
    from mainspring.planner.informed import informed
    from mainspring.planner.ribbon import ribbon
    from mainspring.planner.search import exact, exhaustive

    return {
        "exact": exact,
        "exhaustive": exhaustive,
        "ribbon": ribbon,
        "informed": informed,
    }


def exact(task: Task) -> Ending:
    """Try pools by rising price; raise `BudgetSpent`."""
    counts = task.space.counts[np.flatnonzero(task.possible)]
    for row in counts.tolist():
        if task.trials.evaluate(tuple(row)).holds(task.trials.attainment):
            return Ending("every cheaper pool was tried or has not the capacity", proven=True)
    if not len(counts):
        return Ending("no pool within the bounds has the capacity", proven=True)
    return Ending("every pool was tried or has not the capacity", proven=True)


def exhaustive(task: Task) -> Ending:
    """Try all pools by rising price, those below the floor of capacity too; raise `BudgetSpent`."""
    for pool in task.space.pools():
        task.trials.evaluate(pool, whole=True)
    return Ending("all pools were tried", proven=True)
