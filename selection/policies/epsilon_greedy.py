"""Epsilon-greedy: the member with the best mean reward; now and then any. Pure."""

from __future__ import annotations

import msgspec
import numpy as np

from mainspring.selection.policies.counting import Counting
from mainspring.selection.policies.drawing import drawn
from mainspring.selection.policy import Inputs, State


class EpsilonGreedyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `epsilon_greedy`."""

    epsilon: float = 0.1
    """Share of requests for which any member is taken."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon is {self.epsilon:g}; it has to be 0 to 1")


class EpsilonGreedy(Counting):
    """The best so far, but for a share of requests."""

    name = "epsilon_greedy"
    Options = EpsilonGreedyOptions

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the member with the best mean reward, one that was never tried before all others, or any."""

        def mean(member: str) -> float:
            count, rewards = state[member]
            return rewards / count if count else float("inf")

        best = max(self.members, key=mean)
        any_one = self.options.epsilon / len(self.members)
        shares = dict.fromkeys(self.members, any_one)
        shares[best] += 1 - self.options.epsilon
        member = drawn(shares, generator.random())
        return {member: shares[member]}
