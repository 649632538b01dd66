"""Thompson sampling with Beta posteriors: each member by the probability that it is the best. Pure.

A member's mean reward has the prior Beta(1, 1); rewards between 0 and 1 count as fractions of a success
(Agrawal and Goyal, 2012, section 2, draw a success with that probability instead, which needs a generator
when feedback comes).
"""

from __future__ import annotations

import numpy as np

from mainspring.selection.policies.counting import Counting
from mainspring.selection.policy import Inputs, State


class Thompson(Counting):
    """The member whose drawn reward is highest."""

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
