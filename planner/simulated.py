"""The estimator ``simulate``: a whole cluster in virtual time on the pool, with the spec's own policy.

The cores are those that serve; refusals count as violations. It takes seconds where `queues` takes a
millisecond, and knows batches, deadlines, memory, faults. `from_records` reads what a replayer recorded.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Command, Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import Event
from mainspring.planner.estimate import CONFIDENCE, Estimate, interval, most_late
from mainspring.planner.floor import shares_executions
from mainspring.planner.problem import Z99, PlanError, Pool, Problem
from mainspring.simulator.run import SimulatedRun, simulate
from mainspring.simulator.spec import SimulationSpec, Spread, matches
from mainspring.traces.records import OUTPUTS
from mainspring.traces.report import Progress
from mainspring.traces.source import OpenSource

Columns = npt.NDArray[Any]


def from_records(
    problem: Problem,
    pool: Pool,
    sent: Columns,
    replied: Columns,
    confidence: float,
    utilisation: dict[str, float],
) -> Estimate:
    """Return the estimate of a pool on which all these requests were played.

    What has no outputs counts as a violation: it was refused, lost, or not even sent.
    """
    answered = replied["outcome"] == OUTPUTS
    latency_ns = np.where(answered, replied["replied_ns"] - sent["intended_ns"], np.inf)
    in_time = latency_ns <= sent["slo_ns"]
    low, high = interval(in_time, confidence)
    ended_ms = latency_ns[answered] / 1e6 if answered.any() else np.zeros(1)
    p50_ms, p99_ms = np.quantile(ended_ms, [0.5, 0.99], method="inverted_cdf").tolist()
    reached_ns = float(np.quantile(latency_ns, problem.attainment, method="inverted_cdf"))
    return Estimate(
        pool=pool,
        price=problem.price(pool),
        attainment=float(in_time.mean()),
        low=low,
        high=high,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        reached_ms=reached_ns / 1e6 if np.isfinite(reached_ns) else None,
        utilisation=utilisation,
        queries=len(in_time),
        complete=True,
    )


def from_progress(
    problem: Problem, pool: Pool, progress: Progress, utilisation: dict[str, float]
) -> Estimate:
    """Return what is known of a clear violation that was ended early."""
    return violation(
        problem,
        pool,
        progress.goodput,
        progress.late + progress.rejected,
        (progress.p50_ms or 0.0, progress.p99_ms or 0.0),
        utilisation,
    )


def violation(
    problem: Problem,
    pool: Pool,
    in_time: int,
    missed: int,
    quantiles_ms: tuple[float, float],
    utilisation: dict[str, float],
) -> Estimate:
    """Return the estimate of a pool by the requests that were answered until it was given up."""
    answered = max(1, in_time + missed)
    return Estimate(
        pool=pool,
        price=problem.price(pool),
        attainment=in_time / answered,
        low=in_time / answered,
        high=in_time / answered,
        p50_ms=quantiles_ms[0],
        p99_ms=quantiles_ms[1],
        reached_ms=None,
        utilisation=utilisation,
        queries=answered,
        complete=False,
    )


class _ClearViolation(Exception):
    """Raised when so many requests were late or refused that the rest can't make up for them."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress


class _Busy:
    """Adds up how long each worker's EXEC ran."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self.last_ns = 1
        self._infers: set[int] = set()

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Note an entry of the event stream."""
        if isinstance(entry, Infer):
            self._infers.add(entry.action_id)
        elif isinstance(entry, Result) and entry.action_id in self._infers and entry.status is Status.OK:
            self._infers.discard(entry.action_id)
            self.ns[entry.worker] = self.ns.get(entry.worker, 0) + entry.end_ns - entry.begin_ns
            self.last_ns = max(self.last_ns, now_ns)


class Simulated:
    """Estimates pools of a problem by simulating them."""

    name = "simulate"
    dear = False

    def __init__(self, problem: Problem, confidence: float = CONFIDENCE) -> None:
        """``confidence`` from 0, for the bare share, to below 1."""
        self._problem = problem
        self._confidence = confidence
        self.shares = shares_executions(problem.spec)

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        """Simulate a pool, as `Estimator.evaluate`; raise `PlanError` for one without devices."""
        problem = self._problem
        if not any(pool):
            raise PlanError("a pool without a device serves nothing")
        counted = len(problem.queries) - problem.queries.counted
        limit = counted if whole else most_late(counted, problem.attainment)

        def look(progress: Progress) -> None:
            if progress.late + progress.rejected > limit:
                raise _ClearViolation(progress)

        busy = _Busy()
        given = problem if load == 1.0 else problem.at_load(load)
        source = OpenSource(given.arrivals()) if given.load != 1.0 else None
        spec = self._spec(pool, given.load)
        try:
            run = simulate(spec, analyse=False, record=busy.take, progress=look, source=source)
        except _ClearViolation as violation:
            return self._ended_early(pool, violation.progress, busy)
        return self._estimate(pool, run, busy)

    def _spec(self, pool: Pool, load: float) -> SimulationSpec:
        """Return the spec with a pool's counts, in which durations spread as the profiles say."""
        spec = self._problem.spec
        groups = zip(spec.devices, pool, strict=True)
        spreads = [*spec.faults.spreads, *self._profile_spreads()]
        return msgspec.structs.replace(
            spec,
            devices=tuple(msgspec.structs.replace(group, count=count) for group, count in groups),
            faults=msgspec.structs.replace(spec.faults, spreads=tuple(spreads)),
            warm_up_s=spec.warm_up_s / load,
            duration_s=spec.duration_s / load,
        )

    def _profile_spreads(self) -> list[Spread]:
        """Return the spreads of models' profiles that the spec's faults do not say, the widest of each."""
        found = []
        for model in self._problem.models:
            widest = max(profile.spread for profile in model.profiles.values())
            own = any(matches(model.name, each.models) for each in self._problem.spec.faults.spreads)
            if widest > 1 and not own:
                found.append(Spread(models=model.name, kind="lognormal", sigma=math.log(widest) / Z99))
        return found

    def _estimate(self, pool: Pool, run: SimulatedRun, busy: _Busy) -> Estimate:
        sent, replied = run.records.columns()
        return from_records(
            self._problem, pool, sent, replied, self._confidence, self._utilisation(pool, busy)
        )

    def _ended_early(self, pool: Pool, progress: Progress, busy: _Busy) -> Estimate:
        """Return what is known of a clear violation."""
        return from_progress(self._problem, pool, progress, self._utilisation(pool, busy))

    def _utilisation(self, pool: Pool, busy: _Busy) -> dict[str, float]:
        """Return which part of the time each kind computed; workers are numbered in the kinds' order."""
        found, first = {}, 0
        for kind, count in zip(self._problem.kinds, pool, strict=True):
            mine = [busy.ns.get(f"worker-{number}", 0) for number in range(first, first + count)]
            if count:
                found[kind.name] = sum(mine) / (count * busy.last_ns)
            first += count
        return found
