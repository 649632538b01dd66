"""What the view must know of the scheduler's configuration, as a segment's header says it."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.cluster.estimates import HIGHEST_RANK, RANK


class Settings(msgspec.Struct, frozen=True):
    """Numbers that explain what could have been in time."""

    policy: str = ""
    """Empty while no header has said."""
    dispatch_delay_ns: int = 500_000
    """Nothing that is sent now can begin earlier."""
    response_margin_ns: int = 3_000_000
    """Taken off each deadline for the way back."""
    estimate_rank: int = RANK
    """Where the last ten durations spread, the so many-largest of them is expected."""

    @classmethod
    def of(cls, about: dict[str, Any]) -> Settings:
        """Read a header's ``about``; what it does not say as a number is the scheduler's default."""
        scheduler = about.get("scheduler")
        known = scheduler if isinstance(scheduler, dict) else {}
        given = {}
        for name in ("dispatch_delay", "response_margin"):
            value = known.get(f"{name}_ms")
            if isinstance(value, int | float) and 0 <= value < 1e9:
                given[f"{name}_ns"] = round(value * 1_000_000)
        # Who recorded before there was a choice took the maximum.
        rank = known.get("estimate_rank", 1 if known else RANK)
        if isinstance(rank, int) and 1 <= rank <= HIGHEST_RANK:
            given["estimate_rank"] = rank
        return cls(policy=str(known.get("policy", "")), **given)
