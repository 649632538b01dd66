"""The floor under every scheduler's price: queries assigned to kinds, without any queueing.

A mixed-integer program (`scipy.optimize.milp`): how many devices of each kind, and which part of the queries
of each size each kind takes, so that enough queries end within their SLO, no kind computes for longer than
its devices have, and the pool costs least. No scheduler can do with less, for its queries wait as well.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainspring.planner.pools.floor import Demand, demand
from mainspring.planner.problem import Problem

Values = npt.NDArray[np.float64]
APART = 0.005
"""Queries whose durations differ by less than this part on every kind are one size."""
MOST_SIZES = 2_000
SECONDS = 10.0
"""Time after which the bound that was proven until then is taken, in seconds."""


def least_price(problem: Problem, *, shared: bool) -> float | None:
    """Return a price below which no scheduler keeps the promise, within the kinds' bounds.

    None if none does with all devices. ``shared`` if queries may share executions. Raises ModuleNotFoundError
    where scipy is missing.
    """
    asked = demand(problem, shared=shared)
    sizes_ns, counts = _sizes(asked)
    return _solved(problem, asked, sizes_ns, counts)


def _sizes(asked: Demand) -> tuple[Values, Values]:
    """Return the sizes of queries, by the least time that one of each takes on each kind, and how many are of
    each; queries that no kind can end in time are left out."""
    able = asked.able_ns[:, np.isfinite(asked.able_ns).any(axis=0)]
    apart = APART
    while True:
        steps = np.where(np.isfinite(able), np.floor(np.log(np.maximum(able, 1.0)) / apart), -1.0)
        groups, of, counts = np.unique(steps, axis=1, return_inverse=True, return_counts=True)
        if groups.shape[1] <= MOST_SIZES:
            break
        apart *= 2
    sizes_ns = np.full(groups.shape, np.inf)
    for kind, row in enumerate(able):
        np.minimum.at(sizes_ns[kind], of.ravel(), row)
    return sizes_ns, counts.astype(np.float64)


def _solved(problem: Problem, asked: Demand, sizes_ns: Values, counts: Values) -> float | None:
    """Solve: variables are the queries of each size on each kind, then the devices of each kind."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import block_diag, csr_array, hstack, identity, vstack

    kinds, sizes = sizes_ns.shape
    able = np.isfinite(sizes_ns)
    taken = np.where(able, sizes_ns, 0.0) / asked.time_ns
    times = hstack([block_diag([row[None, :] for row in taken]), -identity(kinds)])
    once = hstack([*[identity(sizes)] * kinds, csr_array((sizes, kinds))])
    enough = csr_array(np.concatenate([np.ones(kinds * sizes), np.zeros(kinds)])[None, :])
    low = np.concatenate([np.full(kinds + sizes, -np.inf), [float(asked.needed)]])
    high = np.concatenate([np.zeros(kinds), counts, [np.inf]])
    least = [float(kind.least) for kind in problem.kinds]
    most = [float(kind.most) for kind in problem.kinds]
    found = milp(
        np.concatenate([np.zeros(kinds * sizes), [kind.price for kind in problem.kinds]]),
        integrality=np.concatenate([np.zeros(kinds * sizes), np.ones(kinds)]),
        bounds=Bounds(
            np.concatenate([np.zeros(kinds * sizes), least]),
            np.concatenate([(able * counts).ravel(), most]),
        ),
        constraints=LinearConstraint(vstack([times, once, enough]), low, high),
        options={"time_limit": SECONDS},
    )
    if found.x is not None and found.status == 0:
        return float(found.fun)
    bound = found.mip_dual_bound
    return float(bound) if bound is not None and np.isfinite(bound) and found.status == 1 else None
