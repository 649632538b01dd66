"""The searches by name, and what each is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from mainspring.planner.estimate import Estimate, Estimator
from mainspring.planner.pools.floor import Flags
from mainspring.planner.pools.space import Space
from mainspring.planner.pools.trials import Trials
from mainspring.planner.problem import Pool, Problem


class Ending(msgspec.Struct, frozen=True):
    """The end of a search."""

    why: str
    proven: bool = False
    """True if every cheaper pool than the best is known not to hold."""


@dataclass(frozen=True, eq=False)
class Before:
    """The evaluations that were made before the load changed."""

    tried: tuple[Estimate, ...]
    best: Estimate
    """The pool that held at the least price then."""
    load: float
    """Load now as a multiple of the load then; above 0."""


@dataclass(frozen=True, eq=False)
class Task:
    """The task that a search is given."""

    problem: Problem
    space: Space
    possible: Flags
    """True for each pool of the space on which some scheduler could keep the promise."""
    trials: Trials
    seed: int = 0
    starts: tuple[Pool, ...] = ()
    """Pools to begin with; searches that need some draw others."""
    prior: Estimator | None = None
    """A quick estimator that may be off, where evaluations are dear."""
    before: Before | None = None
    """The search at another load that this one follows."""


Search = Callable[[Task], Ending]


def searches() -> Mapping[str, Search]:
    """Return the searches by name; the first is the default."""
    from mainspring.planner.pools.exact import exact
    from mainspring.planner.pools.exhaustive import exhaustive
    from mainspring.planner.pools.informed import informed
    from mainspring.planner.pools.ribbon import ribbon

    return {
        "exact": exact,
        "exhaustive": exhaustive,
        "ribbon": ribbon,
        "informed": informed,
    }
