"""Durations as messages for people give them, and the longest one. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

LONGEST_NS: Final = 9_000_000_000_000_000_000
"""Nanoseconds that stand for a longer duration, too."""


def in_milliseconds(duration_ns: int) -> str:
    """Return a duration such as ``3,600,000 ms``, exact to the nanosecond and never as a power of ten."""
    return f"{f'{Decimal(duration_ns).scaleb(-6):,.6f}'.rstrip('0').rstrip('.')} ms"
