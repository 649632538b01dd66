"""Plans of the four pipelines: InferLine's, and whole ones for mean and peak (figures 5 and 9)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mainspring.experiments.inferline.coarse import fixed_units, peak, play_units, unit, units_for
from mainspring.experiments.inferline.pipelines import PIPELINES, Traffic, spec_of
from mainspring.planner.estimate import CONFIDENCE
from mainspring.planner.graph_queues import Configuration, GraphProblem, GraphQueues, read_graph_problem
from mainspring.planner.inferline import inferline
from mainspring.planner.shared import SharedPools, share_devices

RATES = 100.0, 200.0, 300.0
CVS = 1.0, 4.0
SLO_MS = {"image-processing": 150.0, "video-monitoring": 200.0, "social-media": 150.0, "tf-cascade": 150.0}
"""150 ms, as in the paper; the assumed detector leaves too little of it for two steps behind it."""
SAMPLE_S = 60.0
SHARED_S = 10.0


def problems(
    pipeline: str, traffic: Traffic, folder: Path, **options: Any
) -> tuple[GraphProblem, GraphProblem]:
    """Return the problem of the sample, and that of other arrivals of the same process."""
    live = msgspec.structs.replace(traffic, seed=traffic.seed + 1000)
    sample, served = (
        read_graph_problem(spec_of(pipeline, each, folder, **options)) for each in (traffic, live)
    )
    return sample, served


def missed(problem: GraphProblem, stations: Configuration) -> float:
    """Return the share of a problem's queries that end late."""
    latency_ns = GraphQueues(problem).latencies_ns(stations)
    assert latency_ns is not None
    return float((latency_ns > problem.queries.slo_ns)[problem.queries.counted :].mean())


def named(problem: GraphProblem, stations: Configuration) -> str:
    """Return a configuration for a person."""
    return ", ".join(
        f"{step.name} {each.replicas} {problem.kinds[each.kind].name} of {each.batch}"
        for step, each in zip(problem.steps, stations, strict=True)
    )


def _row(pipeline: str, traffic: Traffic, folder: Path, **options: Any) -> dict[str, Any]:
    sample, live = problems(pipeline, traffic, folder, **options)
    found, whole = inferline(GraphQueues(sample)), unit(sample)
    mean, most = units_for(whole, sample.queries.rate), units_for(whole, peak(sample))
    kinder = max(1, math.ceil(peak(sample) / whole.side_by_side)) * whole.price
    return {
        "pipeline": pipeline,
        "rate": traffic.rate,
        "cv": traffic.cv,
        "slo_ms": traffic.slo_ms,
        "price": sample.price(found),
        "missed": missed(live, found),
        "cg_mean_price": mean * whole.price,
        "cg_mean_missed": play_units(live, whole, fixed_units(mean)).late,
        "cg_peak_price": most * whole.price,
        "cg_peak_missed": play_units(live, whole, fixed_units(most)).late,
        "cheaper": most * whole.price / sample.price(found),
        "cheaper_than_side_by_side": kinder / sample.price(found),
        "plan": named(sample, found),
    }


def compared(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return each pipeline's plans by rate and CV (figure 5)."""
    rows = [
        _row(
            pipeline, Traffic(rate=rate, cv=cv, slo_ms=SLO_MS[pipeline], seconds=SAMPLE_S, seed=seed), folder
        )
        for pipeline in PIPELINES
        for rate in RATES
        for cv in CVS
    ]
    return [*rows, summary(rows)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how much cheaper the plans are than for the peak, and what is late at most."""
    cheaper, kinder = ([row[name] for row in rows] for name in ("cheaper", "cheaper_than_side_by_side"))
    return {
        "median": statistics.median(cheaper),
        "best": max(cheaper),
        "side_by_side_median": statistics.median(kinder),
        "side_by_side_best": max(kinder),
        "missed_most": max(row["missed"] for row in rows),
        "below_1_percent": sum(row["missed"] < 0.01 for row in rows),
        "of": len(rows),
    }


def shared(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what each pipeline costs if its steps share the devices under the policy ``mainspring``."""
    found: list[float] = []
    for cv in CVS:
        for pipeline in PIPELINES:
            traffic = Traffic(rate=150, cv=cv, slo_ms=SLO_MS[pipeline], seconds=SHARED_S, seed=seed)
            sample = problems(pipeline, traffic, folder)[0]
            own = inferline(GraphQueues(sample))
            pools, price = SharedPools(sample, CONFIDENCE), sample.price(own)
            together = share_devices(pools, sample.pool(own))
            found.append(0.0 if together is None else 1 - together.price / price)
            yield {
                "pipeline": pipeline,
                "cv": cv,
                "price": price,
                "less": found[-1],
                "pool": "each step its own" if together is None else together.pool,
                "simulated": len(pools.tried),
            }
    yield {"median": statistics.median(found)}


def assumed(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return the summary with what was assumed at half and at double."""
    found = []
    for factor in (0.5, 1.0, 2.0):
        # With an assumed step of half the rate the SLO has to leave it room.
        rows = [
            _row(
                *(pipeline, Traffic(rate=150, cv=cv, slo_ms=300, seconds=SAMPLE_S, seed=seed), folder),
                assumed=factor,
            )
            for pipeline in PIPELINES
            for cv in CVS
        ]
        found.append({"assumed": factor, "slo_ms": 300.0, **summary(rows)})
    return found


def kinds(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return what a third kind, the V100, saves."""
    rows = []
    for pipeline in PIPELINES:
        traffic = Traffic(rate=150, cv=4, slo_ms=SLO_MS[pipeline], seconds=SAMPLE_S, seed=seed)
        prices = [
            sample.price(inferline(GraphQueues(sample)))
            for names in (("k80", "cpu"), ("k80", "cpu", "v100"))
            for sample in [problems(pipeline, traffic, folder, kinds=names)[0]]
        ]
        rows.append({"pipeline": pipeline, "two_kinds": prices[0], "with_v100": prices[1]})
    return rows


def sensitivity(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return what plans of the social media pipeline cost by rate, CV and SLO (figure 9)."""
    rows = []
    for rate in (100.0, 200.0):
        for cv in CVS:
            for slo_ms in (120.0, 150.0, 200.0, 300.0, 500.0):
                traffic = Traffic(rate=rate, cv=cv, slo_ms=slo_ms, seconds=SAMPLE_S, seed=seed)
                sample, live = problems("social-media", traffic, folder)
                found = inferline(GraphQueues(sample))
                rows.append(
                    {
                        "rate": rate,
                        "cv": cv,
                        "slo_ms": slo_ms,
                        "price": sample.price(found),
                        "missed": missed(live, found),
                    }
                )
    return rows
