"""What became of a model's requests."""

from __future__ import annotations


class RequestCounts:
    """What became of a model's requests since it was added; a model that replaces it counts on."""

    __slots__ = ("arrived", "finished", "late", "rejected")

    def __init__(self, arrived: int = 0, finished: int = 0, late: int = 0, rejected: int = 0) -> None:
        self.arrived = arrived
        self.finished = finished
        """Those executed by their deadline; best-effort ones count too."""
        self.late = late
        self.rejected = rejected
        """Those given up by the scheduler, on arrival or later."""
