"""The cheapest pool of each model by `exact`, beside the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import ROWS, SHARED, Arrivals, Setting, spec_of
from mainspring.planner.estimate import Estimator
from mainspring.planner.floor import Space, above_floor
from mainspring.planner.plan import plan
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.simulated import Simulated
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import SimulationSpec
from mainspring.traces.rows import RowsSpec

POLICY = "mainspring"
MARGIN = 0.03


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Pool that one model needs under a policy, beside that of first come, first served."""

    model: str
    policy: str
    arrivals: str
    kinds: tuple[str, ...]
    pool: Pool | None
    price: float | None
    attainment: float | None
    ribbon_pool: Pool | None
    ribbon_price: float | None
    one_kind_price: float | None
    """The best of one kind, first come, first served."""
    saved: float | None
    ribbon_saved: float | None
    floor_price: float | None
    alone_floor_price: float | None
    evaluations: int
    proven: bool


def served(
    setting: Setting,
    folder: Path,
    *,
    policy: str = POLICY,
    arrivals: Arrivals = "artifact",
    pool: Pool | None = None,
    shared: Path = SHARED,
) -> Served:
    """Find a model's cheapest pool under a policy, by the paper's rule: the bare share in time.

    With ``pool`` that one alone is simulated; it is the result if it holds.
    """
    ribbon = plan(spec_of(setting, folder, arrivals=arrivals, shared=shared), confidence=0.0)
    own = spec_under(policy, setting, folder, arrivals=arrivals, shared=shared)
    if pool is not None:
        devices = zip(own.devices, pool, strict=True)
        kept = tuple(
            msgspec.structs.replace(each, least=count, most=count) for each, count in devices if count
        )
        own = msgspec.structs.replace(own, devices=kept)
    ours = plan(own, evaluate="simulate", confidence=0.0)
    one, best = ribbon.one_kind, ours.best
    return Served(
        model=setting.name,
        policy=policy,
        arrivals=arrivals,
        kinds=ours.kinds,
        pool=best.pool if best else None,
        price=best.price if best else None,
        attainment=best.attainment if best else None,
        ribbon_pool=ribbon.best.pool if ribbon.best else None,
        ribbon_price=ribbon.best.price if ribbon.best else None,
        one_kind_price=one.price if one else None,
        saved=1 - best.price / one.price if best and one else None,
        ribbon_saved=ribbon.saved,
        floor_price=ours.floor_price if pool is None else None,
        alone_floor_price=ribbon.floor_price,
        evaluations=len(ours.evaluations),
        proven=ours.proven and pool is None,
    )


def spec_under(
    policy: str,
    setting: Setting,
    folder: Path,
    *,
    seed: int = 0,
    arrivals: Arrivals = "artifact",
    shared: Path = SHARED,
) -> SimulationSpec:
    """Return the spec of a model's evaluation with a policy, whose margin is for durations that vary."""
    spec = spec_of(setting, folder, seed=seed, arrivals=arrivals, shared=shared)
    margin_ms = MARGIN * setting.target_ms
    scheduler = SchedulerConfig(policy=policy, dispatch_delay_ms=0, response_margin_ms=margin_ms)
    return msgspec.structs.replace(spec, scheduler=scheduler)


class Optimum(msgspec.Struct, frozen=True, kw_only=True):
    """Pool that one model needs."""

    model: str
    arrivals: str
    rows: str
    percentile: float
    target_ms: float
    paper_target_ms: float
    kinds: tuple[str, ...]
    pool: Pool | None
    price: float | None
    attainment: float | None
    one_kind: Pool | None
    saved: float | None
    paper_saved: float
    floor_price: float | None
    evaluations: int
    pools: int


def optimum(
    setting: Setting,
    folder: Path,
    *,
    seed: int = 0,
    arrivals: Arrivals = "artifact",
    rows: RowsSpec = ROWS,
    attainment: float = 0.99,
    target_ms: float | None = None,
    shared: Path = SHARED,
) -> Optimum:
    """Find a model's cheapest pool by the paper's rule: the bare share of queries in time."""
    target_ms = setting.target_ms if target_ms is None else target_ms
    spec = spec_of(
        setting,
        folder,
        seed=seed,
        arrivals=arrivals,
        rows=rows,
        attainment=attainment,
        target_ms=target_ms,
        shared=shared,
    )
    found = plan(spec, confidence=0.0)
    best, one = found.best, found.one_kind
    return Optimum(
        model=setting.name,
        arrivals=arrivals,
        rows=rows.kind,
        percentile=attainment,
        target_ms=target_ms,
        paper_target_ms=setting.target_ms,
        kinds=found.kinds,
        pool=best.pool if best else None,
        price=best.price if best else None,
        attainment=best.attainment if best else None,
        one_kind=one.pool if one else None,
        saved=found.saved,
        paper_saved=setting.saved,
        floor_price=found.floor_price,
        evaluations=len(found.evaluations),
        pools=found.pools,
    )


class Share(msgspec.Struct, frozen=True):
    """A share of queries in time over streams, and the ends of its interval of 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2%} ({self.low:.2%} to {self.high:.2%})"


class Fresh(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a model's pools on streams that were not searched on."""

    model: str
    streams: int
    pool: Pool
    """The one that was found."""
    share: Share
    sure_pool: Pool | None
    """The cheapest that holds on the fresh streams; None if no pool within the bounds does."""
    sure_price: float | None
    sure_saved: float | None
    sure_share: Share | None
    confirmed: Share | None
    tried: int
    """Pools simulated on fresh streams."""


def fresh(setting: Setting, found: Served, streams: int, folder: Path, shared: Path = SHARED) -> Fresh | None:
    """Play the pool that was found on fresh streams, and dearer ones if it does not hold.

    None if none was found.
    """
    if found.pool is None or found.price is None:
        return None
    problems = [
        read_problem(spec_under(POLICY, setting, folder, seed=1 + stream, shared=shared))
        for stream in range(2 * streams)
    ]
    estimators = [Simulated(problem) for problem in problems]
    first, further = estimators[:streams], estimators[streams:]
    share, tried = share_of(found.pool, first), 0
    sure: Pool | None = found.pool
    sure_share: Share | None = share
    if share.low < problems[0].attainment:
        space = Space(problems[0].kinds)
        possible = above_floor(problems[0], space.counts, shared=estimators[0].shares)
        dearer = space.counts[possible & (space.prices >= found.price - 1e-9)]
        pools = [pool for row in dearer.tolist() if (pool := tuple(row)) != found.pool]
        sure, sure_share, tried = first_sure(pools, first, problems[0].attainment)
    price = None if sure is None else problems[0].price(sure)
    return Fresh(
        model=setting.name,
        streams=streams,
        pool=found.pool,
        share=share,
        sure_pool=sure,
        sure_price=price,
        sure_saved=1 - price / found.one_kind_price if price and found.one_kind_price else None,
        sure_share=sure_share,
        confirmed=None if sure is None else share_of(sure, further),
        tried=1 + tried,
    )


def first_sure(
    pools: Sequence[Pool], estimators: Sequence[Estimator], objective: float
) -> tuple[Pool | None, Share | None, int]:
    """Return the first of the pools that holds on all streams together, its share, and how many were tried.

    A pool whose whole interval is below the objective on the first stream is not played on the others.
    """
    for number, pool in enumerate(pools, start=1):
        alone = estimators[0].evaluate(pool)
        if alone.complete and alone.high >= objective:
            share = share_of(pool, estimators)
            if share.low >= objective:
                return pool, share, number
    return None, None, len(pools)


def share_of(pool: Pool, estimators: Sequence[Estimator]) -> Share:
    """Return a pool's share over streams, each played to its end; their errors do not hang on one another."""
    found = [estimator.evaluate(pool, whole=True) for estimator in estimators]
    mean = float(np.mean([each.attainment for each in found]))
    below = math.hypot(*[each.attainment - each.low for each in found]) / len(found)
    above = math.hypot(*[each.high - each.attainment for each in found]) / len(found)
    return Share(mean, mean - below, min(1.0, mean + above))
