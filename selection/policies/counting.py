"""Policies that count the number and the sum of each member's rewards: epsilon-greedy, Thompson, UCB1. Pure.

The reward of a row is 1 less its loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mainspring.selection.policy import Inputs, Policy, Selected, State, drawn


class Counting(Policy):
    """A state with the rows that each member was judged by, and the sum of their rewards."""

    start = (0.0, 0.0)

    def shares(self, state: State) -> Mapping[str, float]:
        """Return each member's mean reward, 1 where none is known, by the sum of all."""
        means = {
            member: state[member][1] / state[member][0] if state[member][0] else 1.0
            for member in self.members
        }
        whole = sum(means.values())
        return {member: mean / whole if whole else 1 / len(means) for member, mean in means.items()}

    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        """Return the state with the rows, and their rewards, added to what it counts."""
        changed = dict(state)
        for member, rows in losses.items():
            count, rewards = state[member]
            changed[member] = (count + len(rows), rewards + len(rows) - sum(rows))
        return changed


class EpsilonGreedyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `epsilon_greedy`."""

    epsilon: float = 0.1
    """Share of requests for which any member is taken."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon is {self.epsilon:g}; it has to be 0 to 1")


class EpsilonGreedy(Counting):
    """The member with the best mean reward, but for a share of requests any."""

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


class Thompson(Counting):
    """Each member by the probability that it is the best: Thompson sampling with Beta posteriors.

    A member's mean reward has the prior Beta(1, 1); rewards between 0 and 1 count as fractions of a success
    (Agrawal and Goyal, 2012, section 2, draw a success with that probability instead, which needs a generator
    when feedback comes).
    """

    name = "thompson"

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the member whose draw from its posterior is highest; its probability is not computed: 1."""
        counts = [state[member] for member in self.members]
        draws = generator.beta(
            [1 + rewards for _, rewards in counts], [1 + count - rewards for count, rewards in counts]
        )
        return {self.members[int(draws.argmax())]: 1.0}


class Ucb1(Counting):
    """The member whose reward may be highest (Auer, Cesa-Bianchi and Fischer, 2002, figure 1).

    That is the mean reward plus sqrt(2 ln n / n_i), where n_i of n rows judged the member. What was never
    tried comes first, in the owner's order.
    """

    name = "ucb1"

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the member with the highest bound; nothing is drawn."""
        spread = 2 * math.log(max(1.0, sum(state[member][0] for member in self.members)))

        def bound(member: str) -> float:
            count, rewards = state[member]
            return rewards / count + math.sqrt(spread / count) if count else math.inf

        return {max(self.members, key=bound): 1.0}
