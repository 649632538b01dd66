"""The pools that a search has tried, in order: each once, within a budget, with a record to resume from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mainspring.planner.errors import PlanError
from mainspring.planner.estimate import Estimate, Estimator
from mainspring.planner.problem import Pool

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
