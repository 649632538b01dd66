"""The space of pools, and a floor under what any scheduler needs in it.

Whatever the scheduler does, the queries that end in time were computed between the first arrival and the last
deadline, each by a kind that can end it within its SLO. Give each kind's time a price: then the cheapest
share of the queries must not cost more than all the time that a pool has. Each of a grid of prices excludes
pools; with the best prices it is the mixed-integer program that assigns queries to kinds without queueing
(`least_price`).

Where queries may share executions, a query's time is its part of the best batch (`shared_ns`): a batch of
size B that holds queries of r1, r2, ... rows takes t(B), and r1 + r2 + ... <= B; so it takes at least the sum
of r * t(B) / B. A query's part is that of the size of which a row costs least, by medians.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainspring.messages.model import ModelSpec
from mainspring.planner.problem import DeviceKind, PlanError, Pool, Problem, Whole, added
from mainspring.simulator.spec import DeviceGroup, SimulationSpec

ONE_BY_ONE = ("first-free",)
"""Policies that never run two queries in one execution."""


def shares_executions(spec: SimulationSpec) -> bool:
    """Return whether a spec's policy may run several queries in one execution."""
    return spec.scheduler.policy not in ONE_BY_ONE


def shared_ns(
    groups: tuple[DeviceGroup, ...], models: tuple[ModelSpec, ...], model_of: Whole, rows: Whole
) -> Values:
    """Return the least time of each query on each kind, a row for each kind."""
    found = np.zeros((len(groups), len(rows)))
    for place, model in enumerate(models):
        mine = np.flatnonzero(model_of == place)
        for number, group in enumerate(groups):
            infer_ns = model.profiles[group.kind].infer_ns
            sizes = np.array(sorted(infer_ns), np.int64)
            of_row = np.array([infer_ns[size] / size for size in sizes.tolist()])
            least = np.minimum.accumulate(of_row[::-1])[::-1]
            found[number, mine] = rows[mine] * least[np.searchsorted(sizes, rows[mine])]
    return found


Counts = npt.NDArray[np.int64]
MOST_POOLS = 5_000_000
"""A larger space is refused: it would take gigabytes to list."""


class Space:
    """The pools between ``least`` and ``most`` of each kind, without the empty one."""

    def __init__(self, kinds: Sequence[DeviceKind]) -> None:
        """Raise `PlanError` for a space that is too large to list."""
        self.kinds = tuple(kinds)
        self.size = math.prod(kind.most - kind.least + 1 for kind in kinds)
        if self.size > MOST_POOLS:
            raise PlanError(
                f"there are {self.size:,} pools, more than {MOST_POOLS:,}: give kinds a smaller most or a "
                "larger least, or plan with fewer kinds"
            )
        ranges = [np.arange(kind.least, kind.most + 1) for kind in kinds]
        counts = np.stack([each.ravel() for each in np.meshgrid(*ranges, indexing="ij")], axis=1)
        counts = counts[counts.any(axis=1)].astype(np.int64)
        prices = np.round(counts @ np.array([kind.price for kind in kinds]), 9)
        # Of equal prices the pool with more of the preferred kinds comes first.
        order = np.lexsort((*[-counts[:, place] for place in reversed(range(len(kinds)))], prices))
        self.counts: Counts = counts[order]
        """A row for each pool, by rising price."""
        self.prices: npt.NDArray[np.float64] = prices[order]

    def __len__(self) -> int:
        return len(self.counts)

    def pools(self) -> Iterator[Pool]:
        """Yield all pools by rising price."""
        for row in self.counts.tolist():
            yield tuple(row)

    def of_one_kind(self, place: int) -> list[Pool]:
        """Return the pools of one kind alone by rising price, whatever ``least`` the others have."""
        kind, none = self.kinds[place], (0,) * len(self.kinds)
        return [added(none, place, count) for count in range(max(1, kind.least), kind.most + 1)]


Flags = npt.NDArray[np.bool_]
MOST_PRICES = 200
"""Number of prices that are tried for each choice of kinds, roughly."""
SLACK = 1e-9
"""Tolerance for what rounding may add."""


class Demand(NamedTuple):
    """The demand that the promise makes on devices, whatever the scheduler."""

    able_ns: npt.NDArray[np.float64]
    """The time of each counted query on each kind; infinite where it could not end within its SLO."""
    needed: int
    """Number of these queries that must end in time."""
    time_ns: float
    """Time that each device has: from the first arrival to the last deadline."""


def demand(problem: Problem, *, shared: bool) -> Demand:
    """Return what a problem asks; ``shared`` if queries may share executions."""
    queries = problem.queries
    counted = slice(queries.counted, None)
    alone_ns = problem.durations_ns[:, counted].astype(np.float64)
    slo_ns, due_ns = queries.slo_ns[counted], queries.due_ns[counted]
    taken_ns = alone_ns
    if shared:
        parts_ns = shared_ns(problem.spec.devices, problem.models, queries.models, queries.rows)
        taken_ns = np.minimum(alone_ns, parts_ns[:, counted])
    return Demand(
        np.where(alone_ns <= slo_ns, taken_ns, np.inf),
        math.ceil(problem.attainment * len(due_ns) - SLACK),
        float((due_ns + slo_ns).max() - due_ns.min()),
    )


def above_floor(problem: Problem, counts: npt.NDArray[np.int64], *, shared: bool = False) -> Flags:
    """Return which pools, rows of counts, might keep the promise under some scheduler.

    ``shared`` if that may run several queries in one execution.
    """
    able, needed, time_ns = demand(problem, shared=shared)
    possible = np.zeros(len(counts), np.bool_)
    present = counts > 0
    for kinds in _choices(len(problem.kinds)):
        mine = np.flatnonzero((present == np.isin(np.arange(len(problem.kinds)), kinds)).all(axis=1))
        if len(mine):
            possible[mine] = _affordable(able[list(kinds)], counts[mine][:, list(kinds)], needed, time_ns)
    return possible


def unable(problem: Problem) -> npt.NDArray[np.float64]:
    """Return for each kind which share of the counted queries it can't end in time even when idle."""
    queries = problem.queries
    late = problem.durations_ns[:, queries.counted :] > queries.slo_ns[queries.counted :]
    return np.asarray(late.mean(axis=1))


def _affordable(
    able_ns: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], needed: int, time_ns: float
) -> Flags:
    """Return which pools of some kinds have the time for the cheapest queries, at every price tried."""
    fine = np.ones(len(counts), np.bool_)
    if np.isfinite(able_ns.min(axis=0)).sum() < needed:
        return ~fine
    scale = np.array([each[np.isfinite(each)].mean() if np.isfinite(each).any() else 1.0 for each in able_ns])
    for shares in _prices(len(able_ns)):
        price = shares / scale
        cost = np.partition((able_ns * price[:, None]).min(axis=0), needed - 1)[:needed].sum()
        fine &= counts @ price * time_ns >= cost * (1 - SLACK)
    return fine


def _choices(kinds: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, kinds + 1):
        yield from itertools.combinations(range(kinds), count)


def _prices(kinds: int) -> Iterator[npt.NDArray[np.float64]]:
    """Yield positive prices that add up to 1, spread evenly."""
    steps = kinds
    while math.comb(steps, kinds - 1) <= MOST_PRICES and kinds > 1 and steps < MOST_PRICES:
        steps += 1
    for bars in itertools.combinations(range(1, steps), kinds - 1):
        edges = (0, *bars, steps)
        yield np.diff(np.array(edges)) / steps


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
