"""One arrival: the unit that every workload is a stream of; and the error of a workload that cannot be."""

from __future__ import annotations

import msgspec

SECOND_NS = 1_000_000_000


class WorkloadError(ValueError):
    """A workload is described wrongly; the text says what would be right."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One request that a client means to send."""

    time_ns: int
    """From the start of the workload."""
    model: str
    rows: int = 1
    slo_ns: int | None = None
    """Time to the deadline; None for best effort."""
    client: int = -1
    """Which closed-loop client waits for the answer; -1 in an open loop."""
