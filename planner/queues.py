"""The estimator ``queues``: the pool as one station, first come, first served, over the problem's queries.

A query goes to the first idle server in order of preference; if none is idle it waits for the one that is
idle first (Ribbon, section 5.1), as under the policy ``first-free``. The loop is written for numba, and so
that Python runs it too; both compute with whole nanoseconds, the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from mainspring.planner.estimate import CONFIDENCE, Estimate, interval, most_late
from mainspring.planner.problem import PlanError, Pool, Problem, Whole


def run_station(
    due_ns: Any,
    durations_ns: Any,
    kinds: Any,
    deadline_ns: Any,
    most_late: int,
    free_ns: Any,
    done_ns: Any,
    by: Any,
) -> int:
    """Serve the queries in order until more than ``most_late`` have ended late; return how many were served.

    ``due_ns`` ascends; ``durations_ns`` has a row for each kind; ``kinds`` are the servers', in order of
    preference; ``deadline_ns`` is when a query is late that ends behind it. Fills ``done_ns`` and ``by``, the
    server of each query; ``free_ns`` are the instants at which servers are idle, from the first query on.
    """
    servers = len(kinds)
    late = 0
    for query in range(len(due_ns)):
        begin_ns = due_ns[query]
        chosen = -1
        first = 0
        for server in range(servers):
            if free_ns[server] <= begin_ns:
                chosen = server
                break
            if free_ns[server] < free_ns[first]:
                first = server
        if chosen < 0:
            chosen = first
            begin_ns = free_ns[first]
        end_ns = begin_ns + durations_ns[kinds[chosen]][query]
        free_ns[chosen] = end_ns
        done_ns[query] = end_ns
        by[query] = chosen
        if end_ns > deadline_ns[query]:
            late += 1
            if late > most_late:
                return query + 1
    return len(due_ns)


@cache
def compiled() -> Any:
    """Return `run_station` compiled by numba; None where that is not installed (extra ``planner``)."""
    try:
        import numba
    except ImportError:
        return None
    return numba.njit(cache=True, nogil=True)(run_station)


def serve(
    due_ns: Whole, durations_ns: Whole, kinds: Sequence[int], deadline_ns: Whole, most_late: int
) -> tuple[Whole, Whole]:
    """Serve queries; return when each ended and by which server, of as many as were served.

    As `run_station`, whose loop is compiled where numba is installed and interpreted elsewhere.
    """
    station = compiled()
    if station is None:
        done: list[int] = [0] * len(due_ns)
        by: list[int] = [0] * len(due_ns)
        columns = due_ns.tolist(), durations_ns.tolist(), list(kinds), deadline_ns.tolist()
        served = run_station(*columns, most_late, [0] * len(kinds), done, by)
        return np.array(done[:served], np.int64), np.array(by[:served], np.int64)
    done_ns, by_ns = np.empty(len(due_ns), np.int64), np.empty(len(due_ns), np.int64)
    of, free_ns = np.array(kinds, np.int64), np.zeros(len(kinds), np.int64)
    served = station(due_ns, durations_ns, of, deadline_ns, most_late, free_ns, done_ns, by_ns)
    return done_ns[:served], by_ns[:served]


NEVER_NS = np.iinfo(np.int64).max


class Queues:
    """Estimates pools of a problem."""

    name = "queues"
    dear = False
    shares = False

    def __init__(
        self, problem: Problem, confidence: float = CONFIDENCE, factors: tuple[float, ...] = ()
    ) -> None:
        """``confidence`` from 0, for the bare share, to below 1; ``factors`` on each kind's durations."""
        self._problem = problem
        self._confidence = confidence
        self._factors = factors

    def scaled(self, factors: tuple[float, ...]) -> Queues:
        """Return the estimator with each kind slower or faster, as `Scales.scaled`."""
        return Queues(self._problem, self._confidence, factors)

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        """Serve all queries by a pool, as `Estimator.evaluate`; raise `PlanError` for one without devices."""
        problem, queries = self._problem, self._problem.queries
        if not any(pool):
            raise PlanError("a pool without a device serves nothing")
        counted = queries.counted
        due_ns = queries.due_ns if load == 1.0 else np.rint(queries.due_ns / load).astype(np.int64)
        deadline_ns = due_ns + queries.slo_ns
        deadline_ns[:counted] = NEVER_NS
        kinds = [kind for kind, count in enumerate(pool) for _ in range(count)]
        limit = len(queries) if whole else most_late(len(queries) - counted, problem.attainment)
        deadline_ns[counted:] -= problem.around_ns
        durations_ns = self._durations_ns()
        held_ns = durations_ns + problem.between_ns
        done_ns, by = serve(due_ns, held_ns, kinds, deadline_ns, limit)
        served = len(done_ns)
        latency_ns = (done_ns - due_ns[:served])[counted:] + problem.around_ns
        in_time = latency_ns <= queries.slo_ns[counted:served]
        complete = served == len(queries)
        low, high = interval(in_time, self._confidence)
        ranks = [0.5, 0.99, problem.attainment]
        quantiles = np.quantile(latency_ns, ranks, method="inverted_cdf") / 1e6
        return Estimate(
            pool=pool,
            price=problem.price(pool),
            attainment=float(in_time.mean()),
            low=low,
            high=high,
            p50_ms=float(quantiles[0]),
            p99_ms=float(quantiles[1]),
            reached_ms=float(quantiles[2]),
            utilisation=self._utilisation(pool, kinds, due_ns, done_ns, by, durations_ns),
            queries=len(in_time),
            complete=complete,
        )

    def _durations_ns(self) -> Whole:
        """Return how long each query takes on each kind."""
        durations_ns = self._problem.durations_ns
        if not self._factors:
            return durations_ns
        scaled: Whole = np.rint(durations_ns * np.array(self._factors)[:, None]).astype(np.int64)
        return scaled

    def _utilisation(
        self,
        pool: Pool,
        kinds: list[int],
        due_ns: Whole,
        done_ns: Whole,
        by: Whole,
        durations_ns: Whole,
    ) -> dict[str, float]:
        """Return which part of the time from the first arrival to the last end each kind computed."""
        problem, served = self._problem, np.arange(len(done_ns))
        kind_of = np.array(kinds)[by]
        busy_ns = np.bincount(kind_of, durations_ns[kind_of, served], len(pool))
        span_ns = max(1, int(done_ns.max() - due_ns[0]))
        return {
            kind.name: float(busy_ns[place] / (span_ns * count))
            for place, (kind, count) in enumerate(zip(problem.kinds, pool, strict=True))
            if count
        }
