"""The estimator ``live``: a running cluster scaled to the pool, and a window of queries on it.

The cluster gets each kind's number of workers by `ScaleWorkers`, first those that are more, then those that
are fewer, so that it never has less than both pools have in common. Then a window is watched: the problem's
queries, replayed, or the cluster's own. It ends early at a clear violation: too many late or refused, or a
queue of which most must be. If workers were lost meanwhile, the pool is evaluated again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import msgspec

from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.messages.status import ClusterStatus
from mainspring.planner.estimate import CONFIDENCE, Estimate, most_late
from mainspring.planner.floor import shares_executions
from mainspring.planner.problem import PlanError, Pool, Problem

LOOK_S = 0.25
"""Time between two looks at the cluster, in seconds."""
PATIENCE_S = 120.0
"""Longest time until a cluster is the pool, its models prepared, in seconds."""
TRIES = 3
"""Windows for one pool, if workers are lost in each."""
QUEUES = 2.0
"""A queue is a clear violation from this many times the queries that come within an SLO."""

SHORT = 0.25
"""A queue is short if it has no more than this part of that."""
RELIEF = 1.5
"""Multiple of the pool's devices that first serve a queue that is not short when a window begins."""
RELIEF_S = 30.0
"""Longest time for which they do, in seconds."""


class Gone(Enum):
    """The reason why a window ended before its time."""

    VIOLATES = "violates"
    WORKERS = "workers were lost"


class Watch(Protocol):
    """The question that a window asks while it runs."""

    def __call__(self) -> Gone | None:
        """Return why it is to end now, if it is."""


class Window(Protocol):
    """A time over which queries are watched."""

    def run(self, pool: Pool, confidence: float, limit: int, watch: Watch) -> Estimate:
        """Watch until ``limit`` queries were missed, ``watch`` says so, or the time is over."""


class Live:
    """Estimates pools of a problem on a running cluster."""

    name = "live"
    dear = True

    def __init__(
        self,
        problem: Problem,
        confidence: float = CONFIDENCE,
        *,
        client: Client,
        window: Window,
        patience_s: float = PATIENCE_S,
        say: Callable[[str], None],
    ) -> None:
        """``say`` is told what the cluster is waited for. Raises `PlanError` for a cluster that lacks a kind
        or can't have as many workers as the plan may want."""
        self.shares = shares_executions(problem.spec)
        self._problem = problem
        self._confidence = confidence
        self._client = client
        self._window = window
        self._patience_s = patience_s
        self._say = say
        self._first = self._check()
        """The pool that the cluster was."""

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        """Scale the cluster to a pool and watch a window, as `Estimator.evaluate`; ``load`` must be 1.

        Raises `PlanError` if the cluster does not become the pool, or loses workers in each of `TRIES`
        windows.
        """
        if load != 1.0:
            raise PlanError("a live cluster's queries come at their own rate")
        counted = len(self._problem.queries) - self._problem.queries.counted
        limit = counted if whole else most_late(counted, self._problem.attainment)
        for _ in range(TRIES):
            self._relieve(pool)
            self.become(pool)
            guard = _Guard(self._client, self._problem, pool, ends_early=not whole)
            found = self._window.run(pool, self._confidence, limit, guard)
            if guard.seen is not Gone.WORKERS and not guard.lost():
                return found
            self._say(f"workers were lost while {self._problem.named(pool)} was evaluated: once more")
        raise PlanError(
            f"workers of {self._problem.named(pool)} were lost in each of {TRIES} windows: see why with "
            "mainspring status, and go on with --resume"
        )

    def settle(self, best: Pool | None) -> None:
        """Have the cluster be the plan's pool; without one, the one that it was at first."""
        pool = self._first if best is None else best
        self.become(pool)
        self._say(f"the cluster is {self._problem.named(pool)} now{'' if best else ', as it was at first'}")

    def abandon(self, best: Pool | None) -> None:
        """Leave the cluster as the best pool or as at first, after a search that did not end
        (`Settles.abandon`)."""
        pool = self._first if best is None else best
        what = "the pool that it was at first" if best is None else "the best that holds so far"
        self._say(
            f"the search did not end, so the cluster becomes {self._problem.named(pool)} again, {what} "
            "(Ctrl-C: stays as it is); --resume goes on"
        )
        try:
            self.become(pool)
        except (PlanError, MainspringError) as error:
            self._say(f"it stays as it is, see mainspring scale: {error}")

    def become(self, pool: Pool) -> None:
        """Scale the cluster to a pool and wait until it serves; raise `PlanError` if it does not in time."""
        wanted = dict(zip([kind.name for kind in self._problem.kinds], pool, strict=True))
        now = {kind.kind: kind.wanted for kind in self._client.status().kinds if kind.kind in wanted}
        more = {kind: count for kind, count in wanted.items() if count > now[kind]}
        fewer = {kind: count for kind, count in wanted.items() if count < now[kind]}
        if more:
            for kind, count in more.items():
                self._scale(kind, count)
            self._await({**now, **more})
        for kind, count in fewer.items():
            self._scale(kind, count)
        # Even if nothing is to be changed: a worker that was lost may not be back yet.
        self._await(wanted)

    def _relieve(self, pool: Pool) -> None:
        """Have more devices than a pool has serve what waits, if that is much: most of it is late already.

        It is the former pool's, or came while the cluster was too small for a new load. A pool that has just
        enough for the load would take minutes to get through it.
        """
        if (queued := self._client.status().requests_queued) <= most_queued(self._problem):
            return
        kinds = zip(self._problem.kinds, pool, strict=True)
        more = tuple(min(kind.most, math.ceil(RELIEF * count)) for kind, count in kinds)
        self._say(f"{queued:,} requests wait: {self._problem.named(more)} serve them first")
        self.become(more)
        until = time.monotonic() + RELIEF_S
        while time.monotonic() < until:
            if self._client.status().requests_queued <= SHORT * most_queued(self._problem):
                return
            time.sleep(LOOK_S)

    def _scale(self, kind: str, count: int) -> None:
        try:
            self._client.scale_workers(kind, count)
        except MainspringError as error:
            raise PlanError(
                f"the cluster can't have {count} workers of {kind}: {error} (with least in the spec's group "
                "no pool has fewer)"
            ) from None

    def _await(self, wanted: dict[str, int]) -> None:
        """Wait until as many workers are there, with every model prepared on all of them."""
        until = time.monotonic() + self._patience_s
        told = ""
        while True:
            missing = _missing(self._client.status(), wanted)
            if not missing:
                return
            if missing != told:
                told = missing
                self._say(missing)
            if time.monotonic() > until:
                raise PlanError(
                    f"the cluster did not become the pool within {self._patience_s:g} s: {missing}"
                )
            time.sleep(LOOK_S)

    def _check(self) -> Pool:
        """Return the pool that the cluster is."""
        there = {kind.kind: kind for kind in self._client.status().kinds if kind.provider}
        for kind in self._problem.kinds:
            known = ", ".join(there) or "none"
            if kind.name not in there:
                raise PlanError(
                    f"the cluster can't start workers of {kind.name}; those that it can are of {known}. "
                    "Begin it with mainspring up --devices SPEC"
                )
            if there[kind.name].most < kind.most:
                raise PlanError(
                    f"the cluster can have {there[kind.name].most} workers of {kind.name} and the plan may "
                    f"want {kind.most}: give the spec a smaller most, or [cluster] a larger max_workers"
                )
        return tuple(there[kind.name].wanted for kind in self._problem.kinds)


def most_queued(problem: Problem) -> float:
    """Return how many requests may wait: if more do, most of them must be late."""
    return QUEUES * problem.queries.rate * float(problem.queries.slo_ns.mean()) / 1e9


def _missing(status: ClusterStatus, wanted: dict[str, int]) -> str:
    """Return what a cluster lacks to be a pool, for a person; empty if nothing."""
    for kind in status.kinds:
        if kind.kind in wanted and not (kind.running == wanted[kind.kind] and kind.settled):
            leaving = f"; {', '.join(kind.leaving)} about to leave" if kind.leaving else ""
            fault = f"; {kind.fault}" if kind.fault else ""
            return f"{kind.kind}: {kind.running} of {wanted[kind.kind]} workers{leaving}{fault}"
        connected = sum(worker.device_kind == kind.kind for worker in status.workers)
        if kind.kind in wanted and connected > kind.running:
            # Told to stop, and still connected: the window would take it for one that is lost.
            return f"{kind.kind}: {connected - kind.running} more about to leave"
    names = {worker.worker for worker in status.workers if worker.device_kind in wanted}
    for model in status.models:
        lacking = names - {*model.prepared_on}
        if lacking:
            return f"{model.name} is not prepared on {', '.join(sorted(lacking))}"
    return ""


class _Guard:
    """Watches the cluster during a window, without keeping the window waiting."""

    def __init__(self, client: Client, problem: Problem, pool: Pool, *, ends_early: bool) -> None:
        self._most_queued = most_queued(problem) if ends_early else math.inf
        self._client = client
        self._kinds = {kind.name: count for kind, count in zip(problem.kinds, pool, strict=True)}
        self._workers = self._names(client.status())
        self.seen: Gone | None = None
        self._looked = time.monotonic()
        self._thread: threading.Thread | None = None

    def __call__(self) -> Gone | None:
        """Return why the window is to end, by the last look; begin another look if that was a while ago."""
        looking = self._thread is not None and self._thread.is_alive()
        if self.seen is None and not looking and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self.seen

    def lost(self) -> bool:
        """Return whether workers of the pool are gone now, or others there in their place."""
        if self._thread is not None:
            self._thread.join()
        status = self._client.status()
        fewer = any(kind.running < self._kinds.get(kind.kind, 0) for kind in status.kinds)
        return fewer or self._names(status) != self._workers

    def _look(self) -> None:
        try:
            status = self._client.status()
        except MainspringError:
            return
        if self._names(status) != self._workers:
            self.seen = Gone.WORKERS
        elif status.requests_queued > self._most_queued:
            self.seen = Gone.VIOLATES

    def _names(self, status: ClusterStatus) -> frozenset[str]:
        return frozenset(each.worker for each in status.workers if each.device_kind in self._kinds)


class Counts(msgspec.Struct, frozen=True):
    """The counts of a cluster's requests until an instant."""

    arrived: int
    in_time: int
    missed: int
    queued: int

    @classmethod
    def of(cls, status: ClusterStatus) -> Counts:
        """Return a cluster's counts."""
        models = status.models
        return cls(
            sum(each.arrived for each in models),
            sum(each.finished for each in models),
            sum(each.late + each.rejected for each in models),
            status.requests_queued,
        )

    def since(self, before: Counts) -> Counts:
        """Return what came between two instants, and what is queued now."""
        return Counts(
            self.arrived - before.arrived,
            self.in_time - before.in_time,
            self.missed - before.missed,
            self.queued,
        )


SPAN_S = 10.0
"""Rates are means over this time."""
CHANGED = 0.15
"""A rate that differs by more than this part is another load."""
SURE = 4.0
"""A rate that differs by fewer standard deviations of a Poisson number of requests is the same load."""
LOOKS = 3
"""Looks in a row at which a queue is too long."""
QUICK_S = 2.0
"""Shortest time that a rate is taken over, in seconds, where the queue says that it has changed."""


class LoadWatch:
    """Takes a cluster's counts from time to time, and says when they are of another load."""

    def __init__(self, rate: float, slo_s: float) -> None:
        """``rate`` is the load that was planned for, in requests a second; ``slo_s`` their mean SLO."""
        self._rate = rate
        self._most_queued = QUEUES * rate * slo_s
        self._seen: deque[tuple[float, int]] = deque()
        self._long = 0

    def take(self, now_s: float, counts: Counts) -> float | None:
        """Return the rate if it is another load than what was planned for, else None.

        A queue that stays long says so before the mean rate of `SPAN_S` does.
        """
        self._seen.append((now_s, counts.arrived))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= SPAN_S:
            self._seen.popleft()
        self._long = self._long + 1 if counts.queued > self._most_queued else 0
        span_s, rate = self._mean(QUICK_S if self._long >= LOOKS else SPAN_S)
        if span_s is None:
            return None
        apart = abs(rate - self._rate)
        sure = SURE * (max(self._rate, 1e-9) / span_s) ** 0.5
        return rate if apart > max(CHANGED * self._rate, sure) else None

    def _mean(self, least_s: float) -> tuple[float | None, float]:
        """Return the time and the mean rate over the shortest past of at least this length."""
        now_s, arrived = self._seen[-1]
        for when_s, before in reversed(self._seen):
            if now_s - when_s >= least_s:
                return now_s - when_s, (arrived - before) / (now_s - when_s)
        return None, 0.0
