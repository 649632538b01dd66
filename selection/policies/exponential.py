"""Exp3 and Exp4: exponential weights, kept as logarithms, and a floor under them. Pure.

The weights of the paper, products of many exponentials, would vanish after some thousand observations; their
logarithms don't. With a floor, no member's share of the weights is ever below it: a member that failed for
long, and recovered, is found within steps in proportion to the logarithm of the floor, not to the length of
its failure. The papers have none (0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mainspring.selection.policy import Inputs, Policy, Selected, State, drawn


class ExponentialOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `exp3` and `exp4`."""

    eta: float = 0.1
    """Exponent of a loss of 1: the greater it is, the faster weights follow feedback."""
    floor: float = 0.005
    """Least share of the weights, and of `exp3` the least probability, of a member; 0: none."""

    def __post_init__(self) -> None:
        if not 0 < self.eta <= 100:
            raise ValueError(f"eta is {self.eta:g}; it has to be above 0 and at most 100")
        if not 0 <= self.floor <= 0.1:
            raise ValueError(f"floor is {self.floor:g}; it has to be 0 to 0.1")


class Exponential(Policy):
    """Weights s_i, of which a state has the logarithms."""

    Options = ExponentialOptions
    start = (0.0,)

    def enter(self, others: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        """Return the logarithm of the mean of the others' weights."""
        logs = [each[0] for each in others]
        highest = max(logs)
        return (highest + math.log(sum(math.exp(each - highest) for each in logs) / len(logs)),)

    def shares(self, state: State) -> dict[str, float]:
        """Return p_i = s_i / sum of all s, at least the floor, of each member; they add up to 1."""
        logs = {member: state[member][0] for member in self.members}
        highest = max(logs.values())
        weights = {member: math.exp(log - highest) for member, log in logs.items()}
        floor = min(self.options.floor, 1 / len(weights))
        scale = (1 - floor * len(weights)) / sum(weights.values())
        return {member: floor + scale * weight for member, weight in weights.items()}

    def merged(self, there: State, before: State, after: State) -> State:
        """Return the sum of what was learnt here and elsewhere; the floor is kept."""
        return self.lowered(super().merged(there, before, after), {})

    def lowered(self, state: State, exponents: Mapping[str, float]) -> State:
        """Return the state with the weights multiplied by e to minus these exponents, and the floor kept."""
        lowered = {member: state[member][0] - exponents.get(member, 0.0) for member in self.members}
        if self.options.floor:
            least = max(lowered.values()) + math.log(self.options.floor)
            return {member: (max(log, least),) for member, log in lowered.items()}
        return {member: (log,) for member, log in lowered.items()}


class Exp3(Exponential):
    """One member for each request, the best with growing probability (Clipper, section 5.1).

    Model i is selected with probability p_i = s_i / sum of all s. A loss L of the selected one changes its
    weight, s_i <- s_i exp(-eta L / p_i), with p_i as it was when the model was selected.
    """

    name = "exp3"

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return one member, drawn by the weights, with its probability."""
        shares = self.shares(state)
        member = drawn(shares, generator.random())
        return {member: shares[member]}

    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        """Return the state with the selected member's weight lowered by each row's loss."""
        eta = self.options.eta
        return self.lowered(
            state, {member: eta * sum(rows) / selected[member].probability for member, rows in losses.items()}
        )


class Exp4(Exponential):
    """All members, each prediction counting by its member's weight (Clipper, section 5.2).

    Each member's weight changes with its own loss, s_i <- s_i exp(-eta L_i): unlike `Exp3`'s answers, those
    of the combination may be better than any member's.
    """

    name = "exp4"

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return all members, the one with the highest weight first."""
        by_weight = sorted(self.members, key=lambda member: -state[member][0])
        return dict.fromkeys(by_weight, 1.0)

    def weights(self, state: State, selected: Mapping[str, Selected]) -> Mapping[str, float]:
        """Return the members' weights."""
        return self.shares(state)

    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        """Return the state with each member's weight lowered by its own losses."""
        eta = self.options.eta
        return self.lowered(state, {member: eta * sum(rows) for member, rows in losses.items()})
