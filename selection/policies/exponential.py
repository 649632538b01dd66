"""The base of Exp3 and Exp4: exponential weights, kept as logarithms, and a floor under them. Pure.

The weights of the paper, products of many exponentials, would vanish after some thousand observations; their
logarithms don't. With a floor, no member's share of the weights is ever below it: a member that failed for
long, and recovered, is found within steps in proportion to the logarithm of the floor, not to the length of
its failure. The papers have none (0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from mainspring.selection.policy import Policy, State


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
