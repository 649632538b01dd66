"""The estimator ``queues``: the pool as one station, first come, first served, over the problem's queries.

It serves as the policy ``first-free`` does, without a cluster's messages: milliseconds for an evaluation.
"""

from __future__ import annotations

import numpy as np

from mainspring.planner.errors import PlanError
from mainspring.planner.estimate import CONFIDENCE, Estimate, interval, most_late
from mainspring.planner.kernel import Whole, serve
from mainspring.planner.problem import Pool, Problem

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
