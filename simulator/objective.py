"""The objective of a plan of devices: the share of requests that end in time.

Simulations have it beside the rest, so that a plan's output is a spec like any other; only plans heed it.
"""

from __future__ import annotations

import msgspec


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The promise that a plan keeps at the least price; the latency target is the workload's SLO."""

    attainment: float = 0.99
    """The share of requests that end within their SLO (Ribbon's T_qos); above 0 and below 1."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        if not 0 < self.attainment < 1:
            raise ValueError(
                f"attainment is {self.attainment}; it is a share above 0 and below 1, such as 0.99"
            )
