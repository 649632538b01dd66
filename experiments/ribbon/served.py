"""The same promise for less: the cheapest pools under the policy `mainspring`, which refuses and batches.

Ribbon's serving is first come, first served, each query by itself, and nothing is refused. Here the estimator
`simulate` runs a whole cluster under the default policy; a request that it refuses counts as a violation. The
network takes no time, as in Ribbon's latencies.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.experiments.ribbon.data import SHARED, Arrivals, Setting, spec_of
from mainspring.planner.plan import plan
from mainspring.planner.problem import Pool
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import SimulationSpec

POLICY = "mainspring"
MARGIN = 0.03
"""Of the target: what durations vary by."""


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
    """Of the best of one kind's price."""
    ribbon_saved: float | None
    floor_price: float | None
    """Where queries share executions."""
    alone_floor_price: float | None
    """Where each runs by itself."""
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
