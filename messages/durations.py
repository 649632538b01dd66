"""Durations as messages for people give them, and the longest one. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import msgspec

LONGEST_NS: Final = 9_000_000_000_000_000_000
"""Nanoseconds that stand for a longer duration, too."""


def in_milliseconds(duration_ns: int) -> str:
    """Return a duration such as ``3,600,000 ms``, exact to the nanosecond and never as a power of ten."""
    return f"{f'{Decimal(duration_ns).scaleb(-6):,.6f}'.rstrip('0').rstrip('.')} ms"


class OutputTimes(msgspec.Struct, frozen=True, array_like=True):
    """The time that a request took on its worker, by parts: durations, because others don't have the worker's
    clock."""

    input_ns: int
    """Copying its inputs into IO memory."""
    wait_ns: int
    """Time from then to EXEC's begin."""
    output_ns: int
    """Time from EXEC's end until its outputs were sent."""
    load_ns: int = 0
    """Duration of the LOAD that brought the model in, if this request found it resident nowhere."""
    loaded_ns: int = 0
    """Time from that LOAD's end to EXEC's begin."""
