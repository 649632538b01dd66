"""UCB1: the member whose reward may be highest (Auer, Cesa-Bianchi and Fischer, 2002, figure 1). Pure.

That is the mean reward plus sqrt(2 ln n / n_i), where n_i of n rows judged the member. What was never tried
comes first, in the owner's order.
"""

from __future__ import annotations

import math

import numpy as np

from mainspring.selection.policies.counting import Counting
from mainspring.selection.policy import Inputs, State


class Ucb1(Counting):
    """The member with the highest upper confidence bound."""

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
