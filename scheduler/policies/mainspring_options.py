"""What one may set of the policy `mainspring`."""

from __future__ import annotations

import msgspec


class MainspringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `mainspring`."""

    fairness: float = 0.45
    """From 0 to 1. No model misses more than 1/fairness times as large a share of its requests as all models
    together, and none is answered less than fairness times as large a share: 0 serves the most requests,
    whoever's they are; 1 drops the same share of every model's."""

    def __post_init__(self) -> None:
        """Raise ValueError for a number out of its range."""
        if not 0.0 <= self.fairness <= 1.0:
            raise ValueError(f"fairness is {self.fairness}; it must be from 0 to 1")
