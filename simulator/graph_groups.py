"""The parts ``[[graphs]]`` and ``[[families]]`` of a simulation's spec, as plain frozen structs."""

from __future__ import annotations

from collections.abc import Sequence

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
    members: tuple[str, ...] = ()
    """Models of a family, of which ``model`` is the first: the scheduler chooses one."""
    score: tuple[float, ...] = ()
    """The worth of an answer of each of them, descending."""
    at_least: float = 0.0
    """Least score that clients take."""
    share: float = 1.0
    """Rows that it has for each row of those, in the mean: below 1 under a condition, above 1 with rows of
    its own."""


class FamilyGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models, one of which answers each request, and which workloads and steps name."""

    name: str
    members: tuple[str, ...]
    score: tuple[float, ...]
    at_least: float = 0.0
    """Least score that its clients take."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        if not self.members or len(self.members) != len(self.score):
            count = len(self.members)
            raise ValueError(f"family {self.name!r} has {count} members and {len(self.score)} scores")
        if list(self.score) != sorted(self.score, reverse=True) or self.at_least > self.score[0]:
            raise ValueError(f"family {self.name!r}: name the member of the highest score first")


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


def with_families(graphs: Sequence[GraphGroup], families: Sequence[FamilyGroup]) -> tuple[GraphGroup, ...]:
    """Return the graphs with members where steps name families, and each family as a graph of one step."""
    known = {family.name: family for family in families}

    def resolved(step: GraphStep) -> GraphStep:
        family = known.get(step.model)
        if family is None:
            return step
        return msgspec.structs.replace(
            step,
            name=step.name or family.name,
            model=family.members[0],
            members=family.members,
            score=family.score,
            at_least=family.at_least,
        )

    alone = [GraphGroup(name=each.name, steps=(GraphStep(model=each.name),)) for each in families]
    return tuple(
        [
            msgspec.structs.replace(graph, steps=tuple([resolved(step) for step in graph.steps]))
            for graph in [*graphs, *alone]
        ]
    )
