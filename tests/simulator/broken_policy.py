"""A policy that spoils the state, so that a scenario goes wrong."""

from __future__ import annotations

from examples.earliest_deadline import EarliestDeadline
from mainspring.scheduler.policies.base import Batch


class Spoiler(EarliestDeadline):
    """Counts each batch as if it were queued."""

    name = "spoiler"

    def dispatched(self, now_ns: int, batch: Batch) -> None:
        """Spoil the count of what is queued."""
        self.state.cluster.queued += 1
