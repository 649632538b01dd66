"""Bounds of what a view remembers."""

from __future__ import annotations

import msgspec

SECOND_NS = 1_000_000_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a view's memory; whichever is reached first holds."""

    keep_ns: int = 300 * SECOND_NS
    """Time for which what is over is remembered."""
    actions: int = 600_000
    """Ended actions, those of all executors together: five minutes of 2,000 a second, at 170 bytes each."""
    notable_requests: int = 60_000
    """Requests that were rejected or late."""
    other_requests: int = 60_000
    """Requests that ended in time or were cancelled."""
    requests_of_model: int = 16
    """Newest requests that have ended, for each model's page."""
    evictions: int = 1_000
    """Evictions of each worker."""
    sessions: int = 32
    """Sessions of workers that ended."""
    operations: int = 100
    """Commands of operators."""
    happenings: int = 200
    """Events of workers and of the controller."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a bound that leaves nothing."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
