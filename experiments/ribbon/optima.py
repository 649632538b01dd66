"""The cheapest pool of each model by `exact`, beside the paper's figures."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.experiments.ribbon.data import ROWS, SHARED, Arrivals, Setting, spec_of
from mainspring.planner.plan import plan
from mainspring.planner.problem import Pool
from mainspring.traces.rows import RowsSpec


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
