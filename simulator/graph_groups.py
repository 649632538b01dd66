"""The part ``[[graphs]]`` of a simulation's spec: graphs of models, as plain frozen structs."""

from __future__ import annotations

import msgspec

from mainspring.messages.queries import MOST_STEPS
from mainspring.simulator.checks import check_range


class GraphStep(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a graph."""

    model: str
    name: str = ""
    """Empty: the model's."""
    after: tuple[str, ...] | None = None
    """Names of the steps that it waits for, each before it; None for the one before."""
    share: float = 1.0
    """Rows that it has for each row of those, in the mean: below 1 under a condition, above 1 with rows of
    its own."""


class GraphGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A graph of models, which workloads ask for by its name."""

    name: str
    steps: tuple[GraphStep, ...]
    apart: bool = False
    """True for clients that call step after step by themselves, each with a fixed share of the deadline."""
    least: int = 0
    """The fewest members of an answer of an ensemble, of which every step is one and waits for none; 0: it is
    none."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        known: list[str] = []
        for step in self.steps:
            for each in step.after or ():
                if each not in known:
                    raise ValueError(f"graph {self.name!r}: no step before {step.model!r} is called {each!r}")
            check_range("share", step.share, least=0)
            name = step.name or step.model
            if name in known:
                raise ValueError(f"graph {self.name!r} has two steps {name!r}: give one a name")
            known.append(name)
        if not 1 <= len(known) <= MOST_STEPS:
            raise ValueError(f"graph {self.name!r} has {len(known)} steps; it has 1 to {MOST_STEPS}")
        check_range("least", self.least, least=0, most=len(known))
        if self.least and any(step.after != () for step in self.steps):
            raise ValueError(f"graph {self.name!r} is an ensemble: give each of its steps after = []")
