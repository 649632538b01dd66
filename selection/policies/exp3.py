"""Exp3: one member for each request, the best with growing probability (Clipper, section 5.1). Pure.

Model i is selected with probability p_i = s_i / sum of all s. A loss L of the selected one changes its
weight, s_i <- s_i exp(-eta L / p_i), with p_i as it was when the model was selected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mainspring.selection.policies.drawing import drawn
from mainspring.selection.policies.exponential import Exponential
from mainspring.selection.policy import Inputs, Selected, State


class Exp3(Exponential):
    """One member, drawn by weight."""

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
