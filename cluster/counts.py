"""Counts of a model's requests."""

from __future__ import annotations

from mainspring.messages.metrics import Outlier


class RequestCounts:
    """Counts of a model's requests since it was added; a model that replaces it counts on."""

    __slots__ = ("arrived", "finished", "late", "outlier", "rejected", "slo_ns")

    def __init__(self, arrived: int = 0, finished: int = 0, late: int = 0, rejected: int = 0) -> None:
        self.arrived = arrived
        self.finished = finished
        """Requests executed by their deadline; best-effort ones count too."""
        self.late = late
        self.rejected = rejected
        """Requests given up by the scheduler, on arrival or later."""
        self.slo_ns: int | None = None
        """The time to its deadline that the newest one had when it came; None if it had no deadline."""
        self.outlier: Outlier | None = None
        """The last INFER or LOAD that took so much longer than expected that no estimate follows it."""

    def came(self, now_ns: int, deadline_ns: int | None) -> None:
        """Count a request."""
        self.arrived += 1
        self.slo_ns = None if deadline_ns is None else deadline_ns - now_ns

    def stood_out(self, now_ns: int, worker: str, action_id: int, duration_ns: int, expected_ns: int) -> None:
        """Note an INFER or LOAD that took so much longer than expected that no estimate follows it alone."""
        count = 1 if self.outlier is None else self.outlier.count + 1
        self.outlier = Outlier(now_ns, worker, action_id, duration_ns, expected_ns, count)
