"""The estimator `queues` against the rates that Ribbon's artifact found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SHARED, Arrivals, Setting, rates, spec_of
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.queues import Queues

NEAR = 0.005
"""Pools whose rate in the artifact is this near to 99 % are near it."""
WORST = 3


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How near two tables of rates are."""

    model: str
    arrivals: str
    target_ms: float
    seeds: int
    pools: int
    within_point: float
    """The share of pools whose rates differ by one point at most."""
    near: int
    """Pools within half a point of 99 %."""
    near_within: float
    """The share of these whose rates differ by 0.3 points at most."""
    near_most: float
    """The greatest difference of these, in points."""
    near_mean: float
    worst: list[tuple[Pool, float, float]]
    """Pools with the artifact's rate and ours, the greatest differences first."""


def agreement(
    setting: Setting, seeds: int, arrivals: Arrivals, target_ms: float, folder: Path, shared: Path = SHARED
) -> Agreement | None:
    """Evaluate every pool of the artifact's table, the mean over seeds; None without a table."""
    table = rates(setting, shared)
    if table is None:
        return None
    pools = list(table)
    found = np.zeros(len(pools))
    for seed in range(seeds):
        spec = spec_of(setting, folder, seed=seed, arrivals=arrivals, target_ms=target_ms, shared=shared)
        queues = Queues(read_problem(spec), confidence=0.0)
        found += [queues.evaluate(pool, whole=True).attainment for pool in pools]
    found /= seeds
    theirs = np.array(list(table.values()))
    apart = 100 * (found - theirs)
    near = np.abs(theirs - 0.99) <= NEAR + 1e-9
    worst = np.argsort(-np.abs(apart))[:WORST].tolist()
    return Agreement(
        model=setting.name,
        arrivals=arrivals,
        target_ms=target_ms,
        seeds=seeds,
        pools=len(pools),
        within_point=float((np.abs(apart) <= 1).mean()),
        near=int(near.sum()),
        near_within=float((np.abs(apart[near]) <= 0.3).mean()),
        near_most=float(np.abs(apart[near]).max()),
        near_mean=float(apart[near].mean()),
        worst=[(pools[place], float(theirs[place]), float(found[place])) for place in worst],
    )
