"""How long evaluations and searches take: one pool, all pools, and the cheapest with its proof."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from mainspring.experiments.ribbon.data import SHARED, Setting, spec_of
from mainspring.planner.plan import plan
from mainspring.planner.problem import read_problem
from mainspring.planner.queues import Queues

TIMES = 20
"""Evaluations of one pool, of which the median counts."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time on one core, after the kernel was compiled."""

    model: str
    queries: int
    evaluation_ms: float
    """Of the largest pool, all queries played: the median."""
    evaluation_most_ms: float
    pools: int
    exhaustive_s: float
    """Reading the spec's stream, every pool played to its end, and what a plan says beside."""
    tried: int
    """Pools that ``exact`` evaluated."""
    exact_s: float


def timings(setting: Setting, folder: Path, shared: Path = SHARED) -> Timings:
    """Time the estimator `queues` and two searches by it on a model."""
    spec = spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared)
    problem = read_problem(spec)
    queues = Queues(problem)
    queues.evaluate(setting.most)
    each_s = sorted(_seconds(lambda: queues.evaluate(setting.most, whole=True)) for _ in range(TIMES))
    exhaustive_s = _seconds(lambda: plan(spec, search="exhaustive"))
    began_s = time.process_time()
    found = plan(spec)
    exact_s = time.process_time() - began_s
    assert found.proven, "exact ends with the proof"
    return Timings(
        model=setting.name,
        queries=len(problem.queries),
        evaluation_ms=1e3 * each_s[TIMES // 2],
        evaluation_most_ms=1e3 * each_s[-1],
        pools=found.pools,
        exhaustive_s=exhaustive_s,
        tried=len(found.evaluations),
        exact_s=exact_s,
    )


def _seconds(call: Callable[[], object]) -> float:
    """Return how much processor time a call takes."""
    began_s = time.process_time()
    call()
    return time.process_time() - began_s
