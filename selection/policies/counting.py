"""The base of policies that count: the number and the sum of each member's rewards. Pure.

The reward of a row is 1 less its loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.selection.policy import Policy, Selected, State


class Counting(Policy):
    """A state with the rows that each member was judged by, and the sum of their rewards."""

    start = (0.0, 0.0)

    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        """Return the state with the rows, and their rewards, added to what it counts."""
        changed = dict(state)
        for member, rows in losses.items():
            count, rewards = state[member]
            changed[member] = (count + len(rows), rewards + len(rows) - sum(rows))
        return changed
