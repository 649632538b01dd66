"""The choice of a pool's kinds of devices, where a spec has more than can be searched (Ribbon, section 3.3).

The first kind is the one by which the promise costs least with nothing else. The others are those that serve
most queries for their price (equation 1) among the kinds that end enough of them within a target relaxed by
30 %: with a kind that is slower than that, pools inevitably violate.
"""

from __future__ import annotations

import numpy as np

from mainspring.planner.problem import Problem

RELAXED = 1.3
KINDS = 3
"""Most kinds in a pool: with more, the savings hardly grow, and the space does (Ribbon, figure 8)."""


def cost_effectiveness(problem: Problem) -> list[float]:
    """Return how many queries a device of each kind serves for a unit of currency (equation 1)."""
    mean_ns = problem.durations_ns[:, problem.queries.counted :].mean(axis=1)
    return [3600 * 1e9 / float(mean) / kind.price for mean, kind in zip(mean_ns, problem.kinds, strict=True)]


def choose_kinds(problem: Problem, most: int = KINDS) -> tuple[int, ...]:
    """Return the places of the kinds to plan with, at most ``most`` unless ``least`` demands more.

    They stay in their order of preference.
    """
    kinds = problem.kinds
    if len(kinds) <= most:
        return tuple(range(len(kinds)))
    counted = slice(problem.queries.counted, None)
    durations_ns, slo_ns = problem.durations_ns[:, counted], problem.queries.slo_ns[counted]
    effective = cost_effectiveness(problem)
    in_time = (durations_ns <= slo_ns).mean(axis=1)
    relaxed = (durations_ns <= RELAXED * slo_ns).mean(axis=1)
    able = [place for place in range(len(kinds)) if in_time[place] >= problem.attainment]
    chosen = {place for place, kind in enumerate(kinds) if kind.least}
    chosen.add(max(able, key=lambda place: effective[place]) if able else int(np.argmax(in_time)))
    for place in sorted(range(len(kinds)), key=lambda place: -effective[place]):
        if len(chosen) < most and relaxed[place] >= problem.attainment:
            chosen.add(place)
    return tuple(sorted(chosen))
