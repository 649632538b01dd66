"""Durations as people write them: ``100ms``, ``60s``, ``2m``."""

from __future__ import annotations

import re

from mainspring.traces.arrival import WorkloadError

UNITS_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def parse_duration_ns(text: str) -> int:
    """Return nanoseconds for a number with a unit; raise WorkloadError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h)\s*", text)
    if match is None:
        raise WorkloadError(
            f"{text!r} is no duration; write a number and its unit ({', '.join(UNITS_NS)}), as in 100ms"
        )
    return round(float(match[1]) * UNITS_NS[match[2]])
