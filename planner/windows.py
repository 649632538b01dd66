"""Windows of queries on a live cluster: the problem's, replayed, or the cluster's own."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

import numpy as np

from mainspring.client.client import Client
from mainspring.planner.estimate import Estimate, interval
from mainspring.planner.live import LOOK_S, SHORT, Counts, Gone, Watch, most_queued
from mainspring.planner.problem import LATE_QUERIES, PlanError, Pool, Problem
from mainspring.planner.simulated import from_progress, from_records, violation
from mainspring.traces.records import Records
from mainspring.traces.replayer import ReplayConfig, Replayer
from mainspring.traces.report import Progress, Summary
from mainspring.traces.source import OpenSource

SETTLE_S = 1.0
"""Shortest time for which the cluster's own requests don't count on a new pool, in seconds; they do once the
queue is short, for what waited before was the former pool's."""
STUCK_S = 3.0
"""Time without a shorter queue after which a pool does not get through what waited before, in seconds."""
BACKLOG_S = 10.0
"""Time in which a pool must get through what waited before, in seconds, or a window's if that is longer. A
pool that takes longer violates, and nothing is known of its share in time."""


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
        self.sent = 0
        """Number of requests of all windows."""
        self.lost = 0
        """Number of these that had no answer."""
        self.last: tuple[Summary, Records] | None = None
        """Summary and records of the last window."""
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
        self.last = summary, records
        self.sent += summary.offered
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
        self._short = max(1.0, most_queued(problem) * SHORT)

    def run(self, pool: Pool, confidence: float, limit: int, watch: Watch) -> Estimate:
        """Watch, as `Window.run`; raise `PlanError` for a window with too few requests."""
        queries = self._problem.queries
        span_s = (int(queries.due_ns[-1]) - int(queries.due_ns[queries.counted])) / 1e9
        limit = round(limit * self._seconds / span_s)
        began = before = self._settled()
        if began.queued > self._short:
            return self._estimate(pool, np.zeros(0, np.bool_), confidence)
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
                f"{self._problem.attainment} in time from less: it takes {needed:,}, so give a longer "
                "--window"
            )
        return self._estimate(pool, np.array(in_time, np.bool_), confidence)

    def _settled(self) -> Counts:
        """Wait until what waited before is served, or the queue gets no shorter; return the counts."""
        time.sleep(SETTLE_S)
        began = shorter = time.monotonic()
        least, patience_s = math.inf, max(BACKLOG_S, self._seconds)
        while (counts := Counts.of(self._client.status())).queued > self._short:
            now = time.monotonic()
            if counts.queued < least:
                least, shorter = counts.queued, now
            if now - shorter > STUCK_S or now - began > patience_s:
                break
            time.sleep(LOOK_S)
        return counts

    def _estimate(self, pool: Pool, in_time: np.ndarray, confidence: float) -> Estimate:
        counted = len(in_time) > 0
        low, high = interval(in_time, confidence) if counted else (0.0, 1.0)
        return Estimate(
            pool=pool,
            price=self._problem.price(pool),
            attainment=float(in_time.mean()) if counted else 0.0,
            low=low,
            high=high,
            p50_ms=0.0,
            p99_ms=0.0,
            reached_ms=None,
            utilisation={},
            queries=len(in_time),
            complete=counted,
        )
