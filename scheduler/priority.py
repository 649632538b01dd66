"""Priorities of requests: one changes only the turn among requests of equal slack.

1 is the highest, as in Triton, and 0 means none: behind all others. A request with a priority counts as due
at the beginning of the slice of time that its deadline falls into, so that in every policy's queue it comes
before others of its slice. Requests without a priority keep their order, and cost nothing.
"""

from __future__ import annotations

from typing import Final

LOWEST: Final = 1_000
"""Lower priorities, which are larger numbers, count as this one."""
_STEP_NS: Final = 1 << 46
"""Longer than any best-effort request waits."""


def preferred_due_ns(due_ns: int, priority: int, slice_ns: int) -> int:
    """Return what a request with a priority counts as due at, at most a slice before ``due_ns``."""
    return min(due_ns, due_ns - due_ns % slice_ns + min(priority, LOWEST) - 1)


def preferred_turn_ns(arrived_ns: int, priority: int) -> int:
    """Return when a best-effort request counts as arrived; the earliest is served first."""
    return arrived_ns if priority <= 0 else arrived_ns - (LOWEST + 1 - min(priority, LOWEST)) * _STEP_NS
