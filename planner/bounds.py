"""The most devices of a kind that a pool may have where the spec does not say: Ribbon's m_i (section 4.2).

It is the number from which on more devices of the kind alone have no more queries end in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from mainspring.planner.advice import least_extra
from mainspring.planner.problem import Pool, Problem, added
from mainspring.planner.queues import Queues

IMPROVES = 0.001
"""A smaller share of the queries does not count."""
MOST = 1_024
"""Most devices of one kind; a bound beyond that is the spec's to give."""


def bounded(problem: Problem, pools: Sequence[Pool] = ()) -> Problem:
    """Return the problem with a bound for each kind whose group has no ``most``.

    It is at least the kind's ``least``, and what ``pools``, which are to be within the bounds, have of it.
    """
    inside = [pool for pool in pools if len(pool) == len(problem.kinds)]
    kinds = tuple(
        kind
        if kind.most
        else msgspec.structs.replace(
            kind, most=max(kind.least, _bound(problem, place), *[pool[place] for pool in inside])
        )
        for place, kind in enumerate(problem.kinds)
    )
    return replace(problem, kinds=kinds)


def _bound(problem: Problem, place: int) -> int:
    """Return the least number of a kind that alone ends the queries in time that it ends if none waits."""
    queries, estimator = problem.queries, Queues(problem)
    alone_ns = problem.durations_ns[place] + problem.between_ns + problem.around_ns
    most = float((alone_ns <= queries.slo_ns)[queries.counted :].mean())
    found = least_extra(partial(_saturates, estimator, problem, place, most - IMPROVES), MOST)
    return MOST if found is None else found


def _saturates(estimator: Queues, problem: Problem, place: int, share: float, count: int) -> bool:
    pool = added((0,) * len(problem.kinds), place, count)
    return estimator.evaluate(pool, whole=True).attainment >= share
