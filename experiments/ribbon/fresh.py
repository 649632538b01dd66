"""Whether a pool that a search found on one stream holds on others, and which is the cheapest that does.

A search by the bare share takes the first pool that reaches the objective on its stream, so its share there
says too much: on others of the same rate it may end fewer queries in time. Here a pool holds if the lower end
of its share's interval over all fresh streams reaches the objective. Pools are tried by rising price from the
one that was found, and the one that holds is measured again, on streams that had no part in the choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Setting
from mainspring.experiments.ribbon.optima import POLICY, Served, spec_under
from mainspring.planner.estimate import Estimator
from mainspring.planner.floor import Space, above_floor
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.simulated import Simulated


class Share(msgspec.Struct, frozen=True):
    """A share of queries in time over streams, and the ends of its interval of 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2%} ({self.low:.2%} to {self.high:.2%})"


class Fresh(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's pools do on streams that were not searched on."""

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
