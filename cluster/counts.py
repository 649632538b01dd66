"""What became of a model's requests."""

from __future__ import annotations


class RequestCounts:
    """What became of a model's requests since it was added; a model that replaces it counts on."""

    __slots__ = ("arrived", "finished", "late", "rejected", "slo_ns")

    def __init__(self, arrived: int = 0, finished: int = 0, late: int = 0, rejected: int = 0) -> None:
        self.arrived = arrived
        self.finished = finished
        """Those executed by their deadline; best-effort ones count too."""
        self.late = late
        self.rejected = rejected
        """Those given up by the scheduler, on arrival or later."""
        self.slo_ns: int | None = None
        """The time to its deadline that the newest one had when it came; None if it had no deadline."""

    def came(self, now_ns: int, deadline_ns: int | None) -> None:
        """Count a request."""
        self.arrived += 1
        self.slo_ns = None if deadline_ns is None else deadline_ns - now_ns
