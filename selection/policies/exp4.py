"""Exp4: all members, each prediction counting by its member's weight (Clipper, section 5.2). Pure.

Each member's weight changes with its own loss, s_i <- s_i exp(-eta L_i): unlike `exp3`'s answers, those of
the combination may be better than any member's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mainspring.selection.policies.exponential import Exponential
from mainspring.selection.policy import Inputs, Selected, State


class Exp4(Exponential):
    """All members, by weight."""

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
