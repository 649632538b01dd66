"""The base of policies that count: the number and the sum of each member's rewards. Pure.

The reward of a row is 1 less its loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.selection.policy import Policy, Selected, State


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
