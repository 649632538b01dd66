"""A duration in words, the same in every refusal. Pure."""

from __future__ import annotations

from decimal import Decimal

LONGEST_NS = 9_000_000_000_000_000_000
"""Nanoseconds that stand for a longer duration, too."""


def in_milliseconds(duration_ns: int) -> str:
    """Return a duration such as ``3,600,000 ms``, exact to the nanosecond and never as a power of ten."""
    return f"{f'{Decimal(duration_ns).scaleb(-6):,.6f}'.rstrip('0').rstrip('.')} ms"
