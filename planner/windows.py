"""Windows of queries on a live cluster: the problem's, replayed, or the cluster's own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from mainspring.client.client import Client
from mainspring.planner.errors import PlanError
from mainspring.planner.estimate import Estimate, interval
from mainspring.planner.live import LOOK_S, Counts, Gone, Watch
from mainspring.planner.problem import LATE_QUERIES, Pool, Problem
from mainspring.planner.recorded import from_progress, from_records, violation
from mainspring.traces.replayer import ReplayConfig, Replayer
from mainspring.traces.report import Progress
from mainspring.traces.source import OpenSource

SETTLE_S = 1.0
"""How long the cluster's own requests are left alone on a new pool before they count."""


@dataclass(frozen=True)
class _Stream:
    """The problem's queries as a workload."""

    problem: Problem

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.problem.models)

    def source(self, rng: np.random.Generator) -> OpenSource:
        del rng
        return OpenSource(self.problem.arrivals())


class Replayed:
    """Sends the problem's queries, the same for every pool."""

    def __init__(self, problem: Problem, address: str, token: str | None = None) -> None:
        """Raises `GatewayUnreachable`."""
        self.lost = 0
        """Requests of all windows that had no answer."""
        self._problem = problem
        self._replayer = Replayer(
            ReplayConfig(address=address, token=token, progress_every_s=LOOK_S, straggler_wait_s=5.0)
        )

    def run(self, pool: Pool, confidence: float, limit: int, watch: Watch) -> Estimate:
        """Play the queries, as `Window.run`."""
        stop, last = threading.Event(), list[Progress]()

        def look(progress: Progress) -> None:
            last[:] = [progress]
            why = watch()
            if why is not None or progress.late + progress.rejected + progress.unsent > limit:
                stop.set()

        rows = np.unique(self._problem.queries.rows).tolist()
        summary, records = self._replayer.play(_Stream(self._problem), progress=look, stop=stop, rows=rows)
        self.lost += summary.lost + summary.unanswered
        if stop.is_set() and last:
            return from_progress(self._problem, pool, last[-1], {})
        counted = slice(self._problem.queries.counted, None)
        sent, replied = records.columns()
        return from_records(self._problem, pool, sent[counted], replied[counted], confidence, {})

    def close(self) -> None:
        """Close the connection."""
        self._replayer.close()


class Served:
    """Watches the cluster's own requests, by what its status counts."""

    def __init__(self, problem: Problem, client: Client, seconds: float) -> None:
        """``seconds`` is the window's length."""
        self._problem = problem
        self._client = client
        self._seconds = seconds

    def run(self, pool: Pool, confidence: float, limit: int, watch: Watch) -> Estimate:
        """Watch, as `Window.run`; raise `PlanError` for a window with too few requests."""
        queries = self._problem.queries
        span_s = (int(queries.due_ns[-1]) - int(queries.due_ns[queries.counted])) / 1e9
        limit = round(limit * self._seconds / span_s)
        time.sleep(SETTLE_S)
        began = before = Counts.of(self._client.status())
        until = time.monotonic() + self._seconds
        in_time: list[bool] = []
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            now = Counts.of(self._client.status())
            step, before = now.since(before), now
            in_time += [True] * step.in_time + [False] * step.missed
            missed = now.missed - began.missed
            if watch() is Gone.WORKERS:
                break
            if watch() is Gone.VIOLATES or missed > limit:
                return violation(self._problem, pool, sum(in_time), max(missed, 1), (0.0, 0.0), {})
        needed = round(LATE_QUERIES / (1 - self._problem.attainment))
        if len(in_time) < needed and watch() is not Gone.WORKERS:
            raise PlanError(
                f"{len(in_time)} requests came in {self._seconds:g} s, too few to tell "
                f"{self._problem.attainment:.4g} in time from less: it takes {needed:,}, so give a longer "
                "--window"
            )
        return self._estimate(pool, np.array(in_time or [False]), confidence)

    def _estimate(self, pool: Pool, in_time: np.ndarray, confidence: float) -> Estimate:
        low, high = interval(in_time, confidence)
        return Estimate(
            pool=pool,
            price=self._problem.price(pool),
            attainment=float(in_time.mean()),
            low=low,
            high=high,
            p50_ms=0.0,
            p99_ms=0.0,
            reached_ms=None,
            utilisation={},
            queries=len(in_time),
            complete=True,
        )
