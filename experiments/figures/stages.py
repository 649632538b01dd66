"""The SLOs of figure 7: multiples of one execution of ResNet-50, one stage of the run after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.outcomes import Flags, Outcomes
from mainspring.experiments.figures.paper import (
    FIGURE7_BASE_MS,
    FIGURE7_STAGE_S,
    FIGURE7_STAGES,
    FIGURE7_STEP,
    MILLISECOND_NS,
)
from mainspring.experiments.figures.workloads import Stages
from mainspring.traces.generators import Poisson

MULTIPLIERS = tuple(FIGURE7_STEP**stage for stage in range(FIGURE7_STAGES))
SETTLING_SHARE = 0.1
"""Of each stage, the beginning that is not counted: queues of the stage before."""
SATISFIED = 0.999
"""Share in time that counts as a satisfied workload."""


def rising(rates: dict[str, float], stage_s: float) -> Stages:
    """Return Poisson arrivals whose SLO rises by half from stage to stage."""
    poisson = Poisson(rates)
    slos_ns = [round(FIGURE7_BASE_MS * multiplier * MILLISECOND_NS) for multiplier in MULTIPLIERS]
    return Stages(tuple(poisson.with_requests(slo_ns=slo_ns) for slo_ns in slos_ns), round(stage_s * 1e9))


def stage_seconds(options: Options, short_s: float) -> float:
    """Return the length of one stage."""
    return options.seconds(short_s, FIGURE7_STAGE_S)


def satisfaction(seen: Outcomes, stage_s: float) -> list[float | None]:
    """Return the share in time of each stage's requests with a deadline."""
    return [
        value
        for stage in range(FIGURE7_STAGES)
        for value in seen.shares(seen.in_time, ~seen.best_effort, _edges(stage, stage_s))
    ]


def throughput(seen: Outcomes, flags: Flags, stage_s: float) -> list[float]:
    """Return the rate of such requests in each stage."""
    return [rate for stage in range(FIGURE7_STAGES) for rate in seen.rate(flags, _edges(stage, stage_s))]


def satisfied_from(shares: Sequence[float | None], least: float = SATISFIED) -> float | None:
    """Return the multiplier from which on every stage has at least that share; None if the last has not."""
    found = None
    for multiplier, value in reversed(list(zip(MULTIPLIERS, shares, strict=True))):
        if value is None or value < least:
            break
        found = multiplier
    return found


def nearest_stage(multiplier: float) -> int:
    """Return the stage of a multiplier as the text rounds it."""
    return min(range(FIGURE7_STAGES), key=lambda stage: abs(MULTIPLIERS[stage] - multiplier))


def _edges(stage: int, stage_s: float) -> npt.NDArray[np.float64]:
    return np.array([stage + SETTLING_SHARE, stage + 1]) * stage_s
