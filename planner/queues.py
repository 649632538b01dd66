"""The estimator ``queues``: the pool as one station, first come, first served, over the problem's queries.

A query goes to the first idle server in order of preference; if none is idle it waits for the one that is
idle first (Ribbon, section 5.1), as under the policy ``first-free``. A station may serve what waits in
batches, as the steps of a graph do (`graph_queues`). The loops are written for numba, and so that Python runs
them too; both compute with whole nanoseconds, the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from mainspring.planner.estimate import CONFIDENCE, Estimate, interval, most_late
from mainspring.planner.problem import PlanError, Pool, Problem, Whole


def run_station(
    order: Any,
    due_ns: Any,
    durations_ns: Any,
    kinds: Any,
    most: Any,
    growth: Any,
    between_ns: int,
    deadline_ns: Any,
    most_late: int,
    free_ns: Any,
    done_ns: Any,
    by: Any,
) -> int:
    """Serve the items in order until more than ``most_late`` have ended late; return how many were served.

    ``order`` has the items by ascending ``due_ns``; ``durations_ns`` has a row for each kind; ``kinds`` are
    the servers', in order of preference. A server takes up to ``most[kind]`` items that wait; n take
    ``growth[kind][n]`` times as long as the longest of them alone, and ``between_ns`` more. An item that ends
    behind ``deadline_ns`` is late. Fills ``done_ns`` and ``by``, the server of each item; ``free_ns`` are the
    instants at which servers are idle, from the first item on.
    """
    servers, items = len(kinds), len(order)
    late = position = 0
    while position < items and late <= most_late:
        begin_ns = due_ns[order[position]]
        chosen = 0
        for server in range(servers):
            if free_ns[server] <= begin_ns:
                chosen = server
                break
            if free_ns[server] < free_ns[chosen]:
                chosen = server
        begin_ns = max(begin_ns, free_ns[chosen])
        kind = kinds[chosen]
        longest_ns = durations_ns[kind][order[position]]
        behind, last = position + 1, min(items, position + most[kind])
        while behind < last and due_ns[order[behind]] <= begin_ns:
            longest_ns = max(longest_ns, durations_ns[kind][order[behind]])
            behind += 1
        if behind - position > 1:
            longest_ns = int(longest_ns * growth[kind][behind - position] + 0.5)
        end_ns = begin_ns + longest_ns + between_ns
        free_ns[chosen] = end_ns
        while position < behind:
            item = order[position]
            done_ns[item], by[item] = end_ns, chosen
            late += end_ns > deadline_ns[item]
            position += 1
    return position


def put_in_order(due_ns: Any, order: Any) -> None:
    """Sort ``order``, which has all items, by ``due_ns``; equal ones stay as they are.

    By insertion: what a station hands on is nearly in order.
    """
    for place in range(1, len(order)):
        item = order[place]
        when_ns = due_ns[item]
        while place > 0 and due_ns[order[place - 1]] > when_ns:
            order[place] = order[place - 1]
            place -= 1  # noqa: PLW2901
        order[place] = item


@cache
def compiled() -> tuple[Any, Any] | None:
    """Return `run_station` and `put_in_order` compiled by numba; None where that is not installed (extra
    ``planner``)."""
    try:
        import numba
    except ImportError:
        return None
    jit = numba.njit(cache=True, nogil=True)
    return jit(run_station), jit(put_in_order)


ALONE = np.ones((1, 2))


def serve(
    due_ns: Whole,
    durations_ns: Whole,
    kinds: Sequence[int],
    deadline_ns: Whole,
    most_late: int,
    *,
    between_ns: int = 0,
    most: Sequence[int] | None = None,
    growth: np.ndarray = ALONE,
    in_order: bool = True,
) -> tuple[Whole, Whole, int]:
    """Serve items; return when each ended, by which server, and how many were served.

    As `run_station`, whose loop is compiled where numba is installed and interpreted elsewhere; one item at a
    time without ``most``. Without ``in_order`` they are sorted first. Those that were not served hold 0.
    """
    items = len(due_ns)
    largest = [1] * len(durations_ns) if most is None else list(most)
    order = np.arange(items)
    loops = compiled()
    if loops is None:
        if not in_order:
            order = np.argsort(due_ns, kind="stable")
        done, by = [0] * items, [0] * items
        first, due, durations = (each.tolist() for each in (order, due_ns, durations_ns))
        limits = largest, growth.tolist(), between_ns, deadline_ns.tolist(), most_late
        served = run_station(first, due, durations, list(kinds), *limits, [0] * len(kinds), done, by)
        return np.array(done, np.int64), np.array(by, np.int64), served
    station, sort = loops
    if not in_order:
        sort(due_ns, order)
    done_ns, by_ns, free_ns = (np.zeros(size, np.int64) for size in (items, items, len(kinds)))
    of, sizes = np.array(kinds, np.int64), np.array(largest, np.int64)
    rest = of, sizes, growth, between_ns, deadline_ns, most_late, free_ns, done_ns, by_ns
    return done_ns, by_ns, station(order, due_ns, durations_ns, *rest)


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
        between_ns = problem.between_ns
        ends_ns, servers, served = serve(
            due_ns, durations_ns, kinds, deadline_ns, limit, between_ns=between_ns
        )
        done_ns, by = ends_ns[:served], servers[:served]
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
