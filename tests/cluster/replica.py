"""A reader of the event stream that keeps the fold, and nothing else."""

from __future__ import annotations

from typing import Any

from mainspring.cluster.apply import settle
from mainspring.cluster.follow import follow
from mainspring.cluster.state import Cluster
from mainspring.telemetry.entries import SegmentHeader, Settings
from tests.cluster.described import described


class Replica:
    """The cluster's state, by the stream alone."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._run: int | None = None

    def take(self, now_ns: int, entry: Any) -> None:
        if not isinstance(entry, SegmentHeader):
            follow(self.cluster, now_ns, entry)
        elif entry.run != self._run:
            self._run, self.cluster = entry.run, Settings.of(entry.about).cluster()

    def stands(self) -> dict[str, Any]:
        return stands(self.cluster)


def stands(cluster: Cluster) -> dict[str, Any]:
    """Return what is to be equal to the scheduler's own state."""
    settle(cluster)
    return described(cluster)
