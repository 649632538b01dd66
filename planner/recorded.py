"""Estimates from what a replayer, live or simulated, recorded of each request."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mainspring.planner.estimate import Estimate, interval
from mainspring.planner.problem import Pool, Problem
from mainspring.traces.records import OUTPUTS
from mainspring.traces.report import Progress

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
