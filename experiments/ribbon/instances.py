"""What the paper shows by MT-WND on two kinds of instances, and on more (figures 3, 4, 5, 8 and 12)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.ribbon.data import SETTINGS, SHARED, measurements, prices, spec_of
from mainspring.experiments.ribbon.memo import Arena
from mainspring.planner.estimate import Estimate
from mainspring.planner.pools.floor import above_floor
from mainspring.planner.pools.space import Space
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.queues import Queues

MTWND = next(each for each in SETTINGS if each.key == "mtwnd")
PAIR = msgspec.structs.replace(MTWND, kinds=("g4dn.xlarge", "t3.xlarge"), most=(5, 12))
"""The two kinds of figures 4, 5, 7 and 12."""
PAIR_MS = 22.0
"""Their target, with true Poisson arrivals. By the measured latencies every pool that these figures name does
here as the paper says; at the artifact's arrivals 4 g4dn + 1 t3 hold and are cheaper than 3 + 4."""
SHOWN: tuple[Pool, ...] = ((5, 0), (4, 0), (0, 12), (3, 4), (2, 4), (4, 4))
START: Pool = (5, 5)
MORE = ("g4dn.xlarge", "r5n.large", "c5.2xlarge", "t3.xlarge", "m5.xlarge")
"""Kinds in the order in which figure 8 adds them."""
MOST = 12


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of instance under one batch size, as parts of the best kind's (figure 3)."""

    kind: str
    batch: int
    performance: float
    cost_effectiveness: float


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """A search on two kinds: the pools that it tried until the cheapest that holds (figure 12)."""

    search: str
    tried: list[Pool]
    found: bool


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """Pools of several kinds (figure 8)."""

    kinds: tuple[str, ...]
    better: int
    """Pools that hold and cost less than the best of one kind."""
    saved: float


class Instances(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    instances: list[Instance]
    shown: list[Estimate]
    """Pools of two kinds, by name (figure 4)."""
    grid: list[Estimate]
    """All pools of two kinds (figure 12)."""
    best: Pool
    searched: list[Searched]
    kinds: list[Kinds]


def instances(folder: Path, shared: Path = SHARED) -> Instances:
    """Compute what the figures show: of two kinds at `PAIR_MS`, of more with the artifact's target."""
    spec = spec_of(PAIR, folder, target_ms=PAIR_MS, arrivals="poisson", shared=shared)
    arena = Arena(read_problem(spec))
    searched = []
    for name, starts in (("ribbon", (START,)), ("hill-climb", (START,)), ("rsm", ()), ("random", ())):
        pools = [each.pool for each in arena.run(name, 0, starts).tried]
        found = arena.best.pool in pools
        until = pools[: pools.index(arena.best.pool) + 1] if found else pools
        searched.append(Searched(search=name, tried=until, found=found))
    return Instances(
        instances=_measured(shared),
        shown=[arena.estimator.evaluate(pool) for pool in SHOWN],
        grid=arena.table(),
        best=arena.best.pool,
        searched=searched,
        kinds=[_better(MORE[:count], folder, shared) for count in range(2, len(MORE) + 1)],
    )


def _measured(shared: Path) -> list[Instance]:
    """Return what each measured kind does on MT-WND with 32 and 128 rows, which are padded to tens."""
    priced, found = prices(shared), []
    rows = [row for row in measurements(shared) if row["source"] == "ribbon" and row["model"] == MTWND.key]
    for batch, padded in ((32, "40"), (128, "130")):
        rate = {row["instance"]: 1e3 / float(row["mean_ms"]) for row in rows if row["batch"] == padded}
        worth = {kind: each / priced[kind] for kind, each in rate.items()}
        found += [
            Instance(
                kind=kind,
                batch=batch,
                performance=rate[kind] / max(rate.values()),
                cost_effectiveness=worth[kind] / max(worth.values()),
            )
            for kind in sorted(rate)
        ]
    return found


def _better(kinds: tuple[str, ...], folder: Path, shared: Path) -> Kinds:
    """Return how many pools of some kinds beat the best of one kind, and by how much the cheapest does.

    Only what costs less than that is evaluated: four of the first kind at most.
    """
    most = (PAIR.most[0], *[MOST] * (len(kinds) - 1))
    setting = msgspec.structs.replace(MTWND, kinds=kinds, most=most)
    problem = read_problem(spec_of(setting, folder, target_ms=setting.artifact_ms, shared=shared))
    space, queues = Space(problem.kinds), Queues(problem, confidence=0.0)
    alone = (queues.evaluate((count, *[0] * (len(kinds) - 1))) for count in range(1, most[0] + 1))
    one = next(each for each in alone if each.holds(problem.attainment))
    cheaper = space.counts[space.prices < one.price - 1e-9]
    # Far too little capacity is told apart by the means alone, before the floor is computed.
    rates = 1 / problem.durations_ns.mean(axis=1)
    enough = cheaper[cheaper @ rates * 1e9 > 0.97 * problem.queries.rate]
    possible = enough[above_floor(problem, enough)]
    found = [queues.evaluate(tuple(row)) for row in possible.tolist()]
    holding = [each.price for each in found if each.holds(problem.attainment)]
    saved = 1 - min(holding) / one.price if holding else 0.0
    return Kinds(kinds=kinds, better=len(holding), saved=float(np.round(saved, 4)))
