"""The cheapest pool of each model by `exact`, beside the paper's figures."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.experiments.ribbon.data import ROWS, SHARED, Arrivals, Setting, spec_of
from mainspring.planner.plan import plan
from mainspring.planner.problem import Pool
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import SimulationSpec
from mainspring.traces.rows import RowsSpec

POLICY = "mainspring"
MARGIN = 0.03


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one model needs under a policy, beside what first come, first served needs."""

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
    """What one model needs."""

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
