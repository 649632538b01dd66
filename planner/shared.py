"""``--shared``: all steps of a graph on the same devices, under the scheduler that knows deadlines.

Past InferLine, whose steps own their devices: the fewest devices of each kind on which the simulated cluster,
with the spec's own policy, keeps the promise. It begins with what the plan has together, so it is never
dearer; that fewer of a kind never do better is assumed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from mainspring.planner.estimate import interval, most_late
from mainspring.planner.graph_queues import GraphProblem
from mainspring.planner.problem import Pool
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import SimulationSpec
from mainspring.traces.records import OUTPUTS
from mainspring.traces.report import Progress

MOST_SIMULATED = 40
"""Pools that are simulated at most."""


class SharedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that all steps share."""

    pool: Pool
    """Number of devices of each kind."""
    price: float
    attainment: float
    """The share of queries that end in time, simulated."""
    low: float
    """The lower end of its confidence interval, which keeps the promise."""
    simulated: int
    """Pools that were simulated."""


class _Violation(Exception):
    """Raised when too many queries were late or refused."""


class SharedPools:
    """Simulates pools of a problem's kinds that all steps share."""

    def __init__(self, problem: GraphProblem, confidence: float) -> None:
        self.problem = problem
        self.tried: dict[Pool, tuple[float, float]] = {}
        """Share of the queries in time, and the lower end of its interval, by pool."""
        self._confidence = confidence

    def price(self, pool: Pool) -> float:
        """Return what a pool costs an hour."""
        return float(sum(kind.price * count for kind, count in zip(self.problem.kinds, pool, strict=True)))

    def holds(self, pool: Pool) -> bool:
        """Return whether a pool keeps the promise, simulated if it is the first time."""
        if not any(pool):
            return False
        if pool not in self.tried:
            self.tried[pool] = self._simulated(pool)
        return self.tried[pool][1] >= self.problem.attainment

    def _simulated(self, pool: Pool) -> tuple[float, float]:
        queries = self.problem.queries
        limit = most_late(len(queries) - queries.counted, self.problem.attainment)

        def look(progress: Progress) -> None:
            if progress.late + progress.rejected > limit:
                raise _Violation

        try:
            run = simulate(self._spec(pool), analyse=False, progress=look)
        except _Violation:
            return 0.0, 0.0
        sent, replied = run.records.columns()
        latency_ns = np.where(
            replied["outcome"] == OUTPUTS, replied["replied_ns"] - sent["intended_ns"], np.inf
        )
        in_time = latency_ns <= sent["slo_ns"]
        return float(in_time.mean()), interval(in_time, self._confidence)[0]

    def _spec(self, pool: Pool) -> SimulationSpec:
        """Return the spec with a pool's counts; what has none is left out."""
        groups = zip(self.problem.spec.devices, pool, strict=True)
        devices = [msgspec.structs.replace(group, count=count) for group, count in groups if count]
        return msgspec.structs.replace(self.problem.spec, devices=tuple(devices))


def share_devices(pools: SharedPools, first: Pool, most: int = MOST_SIMULATED) -> SharedPlan | None:
    """Return the fewest devices of each kind, begun with ``first`` or, if that does not hold when shared,
    with as many of one kind alone for its price; None if none of them does.

    The kind that costs most goes first, down to the fewest that hold; again until no kind has one too many.
    """
    start = next((pool for pool in (first, *_alone(pools, first)) if pools.holds(pool)), None)
    if start is None:
        return None
    best, before = start, None
    while best != before and len(pools.tried) < most:
        before = best
        spent = [-kind.price * count for kind, count in zip(pools.problem.kinds, best, strict=True)]
        for place in np.argsort(spent, kind="stable").tolist():
            best = _fewest(pools.holds, best, place, lambda: len(pools.tried) < most)
    share, low = pools.tried[best]
    return SharedPlan(
        pool=best, price=pools.price(best), attainment=share, low=low, simulated=len(pools.tried)
    )


def _alone(pools: SharedPools, first: Pool) -> list[Pool]:
    """Return pools of one kind alone, of those in ``first``, for at most its price; the dearest first."""
    kinds, budget = pools.problem.kinds, pools.price(first) + 1e-9
    places = [place for place, count in enumerate(first) if count]
    places.sort(key=lambda place: -kinds[place].price)
    found = [
        tuple(int(budget / kinds[place].price) * (other == place) for other in range(len(first)))
        for place in places
    ]
    return [pool for pool in found if pool != first]


def _fewest(holds: Callable[[Pool], bool], pool: Pool, place: int, goes_on: Callable[[], bool]) -> Pool:
    """Return a pool that holds with the fewest of one kind, by halving."""
    low, high = -1, pool[place]
    while high - low > 1 and goes_on():
        middle = (low + high) // 2
        if holds((*pool[:place], middle, *pool[place + 1 :])):
            high = middle
        else:
            low = middle
    return (*pool[:place], high, *pool[place + 1 :])
