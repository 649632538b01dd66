"""The interface of selection policies: four functions around a state (Clipper, listing 2). Pure.

A state is a few numbers of each member, so that the system can store it, take the mean of many users' states
for a new one, and let a member enter. To `observe` adds to these numbers what depends on the feedback and on
what was selected, not on the state: updates of two gateways may come in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from mainspring.selection.outputs import Answer, Array, Output

State = Mapping[str, tuple[float, ...]]
"""Numbers that a policy has learnt of each member, by name without version: a new version keeps them."""
Inputs = Mapping[str, Array]


class Selected(msgspec.Struct, frozen=True, gc=False):
    """A member that was asked."""

    probability: float
    """The probability with which it was selected, as it was then; 1 where all are."""
    output: Array | None = None
    """Its output, rows first; None if it has none."""
    missing: bool = False
    """True if the output is not its own, which did not come, but stands in for it."""


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a policy that has none."""


class Policy(ABC):
    """Selects members, combines what they predict, and learns from feedback.

    A subclass defines `select` and `learn`, and says with `weights` whose predictions count for more. One
    that needs more than losses overrides `observe`, and one that combines in another way `combine`.
    """

    name: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    start: ClassVar[tuple[float, ...]] = ()
    """The numbers of a member of which nothing is known."""

    def __init__(self, members: Sequence[str], output: Output, options: msgspec.Struct) -> None:
        """``members`` are their names without versions, in their owner's order."""
        self.members = tuple(members)
        self.output = output
        self.options: Any = options

    def init(self) -> State:
        """Return the state of an application, or a context, of which nothing is known."""
        return dict.fromkeys(self.members, self.start)

    def enter(self, others: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        """Return the numbers of a member that enters beside others: their mean."""
        return tuple(sum(column) / len(others) for column in zip(*others, strict=True))

    def completed(self, state: State) -> State:
        """Return a state with the members that entered since it was stored, without those that left."""
        if state.keys() == set(self.members):
            return state
        known = [state[each] for each in self.members if each in state]
        begins = self.enter(known) if known else self.start
        return {each: state.get(each, begins) for each in self.members}

    def continues(self, other: Policy) -> bool:
        """Say whether another policy's states mean the same to this one: both are of one class, or base."""
        common = set(type(self).__mro__).intersection(type(other).__mro__).difference(Policy.__mro__)
        return bool(common) and self.start == other.start

    @property
    def family(self) -> str:
        """Return the name of the class whose subclasses learn the same numbers."""
        own = [each for each in type(self).__mro__ if issubclass(each, Policy) and each is not Policy]
        return f"{own[-1].__module__}:{own[-1].__qualname__}"

    def fits(self, state: State) -> bool:
        """Say whether a stored state has as many numbers of each member as this policy's."""
        return bool(state) and all(len(numbers) == len(self.start) for numbers in state.values())

    def merged(self, there: State, before: State, after: State) -> State:
        """Return what another gateway stored, with what was learnt here between two states added to it."""
        there, before, after = self.completed(there), self.completed(before), self.completed(after)
        return {
            member: tuple(
                [
                    one + new - old
                    for one, old, new in zip(numbers, before[member], after[member], strict=True)
                ]
            )
            for member, numbers in there.items()
        }

    @abstractmethod
    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the members to ask, each with the probability of its selection; the first counts most."""

    def weights(self, state: State, selected: Mapping[str, Selected]) -> Mapping[str, float]:
        """Return how much each selected member's prediction counts; they need not add up to 1."""
        return dict.fromkeys(selected, 1.0)

    def shares(self, state: State) -> Mapping[str, float]:
        """Return each member's share of the weights, for people to see; they add up to 1."""
        return dict.fromkeys(self.members, 1 / len(self.members))

    def combine(self, state: State, inputs: Inputs, selected: Mapping[str, Selected]) -> Answer:
        """Return the answer of the members that have an output; raise ValueError if none has."""
        outputs = {name: each.output for name, each in selected.items() if each.output is not None}
        missing = [name for name, each in selected.items() if each.missing]
        weights = self.weights(state, selected)
        if weights.keys() != outputs.keys():
            weights = {name: weights[name] for name in outputs}
        return self.output.combine(outputs, weights, missing, len(selected))

    def observe(self, state: State, inputs: Inputs, truth: Array, selected: Mapping[str, Selected]) -> State:
        """Return the state after feedback: ``truth`` has the label or value of each row.

        Members whose output is missing learn nothing. Raises ValueError if a loss is not in [0, 1].
        """
        losses = {
            name: self.output.losses(truth, each.output)
            for name, each in selected.items()
            if each.output is not None and not each.missing
        }
        return self.learn(state, losses, selected)

    @abstractmethod
    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        """Return the state after members had these losses, one for each row."""


def drawn(shares: Mapping[str, float], at: float) -> str:
    """Return a member, each with the probability that is its share, for ``at`` drawn from 0 to below 1."""
    for member, share in shares.items():
        at -= share
        if at < 0:
            return member
    return next(reversed(dict(shares)))  # Shares may add up to a little less than 1.
