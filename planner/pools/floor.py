"""A floor under what any scheduler needs: pools whose devices have not the time for the share of queries.

Whatever the scheduler does, the queries that end in time were computed between the first arrival and the last
deadline, each by a kind that can end it within its SLO. Give each kind's time a price: then the cheapest
share of the queries must not cost more than all the time that a pool has. That holds at any prices, so each
of a grid of prices excludes pools; with the best prices it is the linear program of assigning queries to
kinds without queueing (`assignment`). Where queries may share executions, a query's time is its part of the
best batch (`sharing`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.planner.problem import Problem
from mainspring.planner.sharing import shared_ns

Flags = npt.NDArray[np.bool_]
MOST_PRICES = 200
"""Number of prices that are tried for each choice of kinds, roughly."""
SLACK = 1e-9
"""Tolerance for what rounding may add."""


class Demand(NamedTuple):
    """The demand that the promise makes on devices, whatever the scheduler."""

    able_ns: npt.NDArray[np.float64]
    """The time of each counted query on each kind; infinite where it could not end within its SLO."""
    needed: int
    """Number of these queries that must end in time."""
    time_ns: float
    """Time that each device has: from the first arrival to the last deadline."""


def demand(problem: Problem, *, shared: bool) -> Demand:
    """Return what a problem asks; ``shared`` if queries may share executions."""
    queries = problem.queries
    counted = slice(queries.counted, None)
    alone_ns = problem.durations_ns[:, counted].astype(np.float64)
    slo_ns, due_ns = queries.slo_ns[counted], queries.due_ns[counted]
    taken_ns = alone_ns
    if shared:
        parts_ns = shared_ns(problem.spec.devices, problem.models, queries.models, queries.rows)
        taken_ns = np.minimum(alone_ns, parts_ns[:, counted])
    return Demand(
        np.where(alone_ns <= slo_ns, taken_ns, np.inf),
        math.ceil(problem.attainment * len(due_ns) - SLACK),
        float((due_ns + slo_ns).max() - due_ns.min()),
    )


def above_floor(problem: Problem, counts: npt.NDArray[np.int64], *, shared: bool = False) -> Flags:
    """Return which pools, rows of counts, might keep the promise under some scheduler.

    ``shared`` if that may run several queries in one execution.
    """
    able, needed, time_ns = demand(problem, shared=shared)
    possible = np.zeros(len(counts), np.bool_)
    present = counts > 0
    for kinds in _choices(len(problem.kinds)):
        mine = np.flatnonzero((present == np.isin(np.arange(len(problem.kinds)), kinds)).all(axis=1))
        if len(mine):
            possible[mine] = _affordable(able[list(kinds)], counts[mine][:, list(kinds)], needed, time_ns)
    return possible


def unable(problem: Problem) -> npt.NDArray[np.float64]:
    """Return for each kind which share of the counted queries it can't end in time even when idle."""
    queries = problem.queries
    late = problem.durations_ns[:, queries.counted :] > queries.slo_ns[queries.counted :]
    return np.asarray(late.mean(axis=1))


def _affordable(
    able_ns: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], needed: int, time_ns: float
) -> Flags:
    """Return which pools of some kinds have the time for the cheapest queries, at every price tried."""
    fine = np.ones(len(counts), np.bool_)
    if np.isfinite(able_ns.min(axis=0)).sum() < needed:
        return ~fine
    scale = np.array([each[np.isfinite(each)].mean() if np.isfinite(each).any() else 1.0 for each in able_ns])
    for shares in _prices(len(able_ns)):
        price = shares / scale
        cost = np.partition((able_ns * price[:, None]).min(axis=0), needed - 1)[:needed].sum()
        fine &= counts @ price * time_ns >= cost * (1 - SLACK)
    return fine


def _choices(kinds: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, kinds + 1):
        yield from itertools.combinations(range(kinds), count)


def _prices(kinds: int) -> Iterator[npt.NDArray[np.float64]]:
    """Yield positive prices that add up to 1, spread evenly."""
    steps = kinds
    while math.comb(steps, kinds - 1) <= MOST_PRICES and kinds > 1 and steps < MOST_PRICES:
        steps += 1
    for bars in itertools.combinations(range(1, steps), kinds - 1):
        edges = (0, *bars, steps)
        yield np.diff(np.array(edges)) / steps
