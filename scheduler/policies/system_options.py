"""What may be set of the policies after published systems: Clockwork as released, Nexus and Symphony.

They stand apart from the policies so that those are compiled: modules with Structs stay Python.
"""

from __future__ import annotations

import msgspec


class ReleaseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `ClockworkRelease`."""

    largest_batch: int = 8
    """Rows of the largest batch that is filled; a request of more rows gets the size that it needs."""
    load_slo_ms: float = 25.0
    """How long ago a request may have arrived and still count as demand for a LOAD."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        if self.largest_batch < 1:
            raise ValueError(f"largest_batch is {self.largest_batch}; it must be at least 1")
        if not self.load_slo_ms > 0:
            raise ValueError(f"load_slo_ms is {self.load_slo_ms}; it must be greater than 0")


class NexusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `Nexus`."""

    epoch_ms: float = 1000.0
    """From one plan to the next. Nexus plans each 30 s or when rates change much; a short epoch is for
    both."""
    smoothing: float = 0.2
    """Weight of the last epoch's rate against those before, once there are enough of them; 1 is the last
    epoch's alone."""
    headroom: float = 0.1
    """Part by which devices are planned for more than the rates that were measured, if there is room."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        if not 1 <= self.epoch_ms <= 3_600_000:
            raise ValueError(f"epoch_ms is {self.epoch_ms}; it must be from 1 to 3600000")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing is {self.smoothing}; it must be greater than 0 and at most 1")
        if not 0 <= self.headroom <= 10:
            raise ValueError(f"headroom is {self.headroom}; it must be from 0 to 10")


class SymphonyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of `Symphony`."""

    guard_ms: float = 0.1
    """How much before the beginning of its window a batch is dispatched, against what varies on its way:
    where the window is an instant, anything later is too late."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        if not 0 <= self.guard_ms < 1000:
            raise ValueError(f"guard_ms is {self.guard_ms}; it must be at least 0 and less than 1000")
