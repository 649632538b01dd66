"""The part of the scheduler's configuration that the fold depends on, as a segment's header has it."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.cluster.rolling import HIGHEST_RANK, RANK
from mainspring.cluster.state import Cluster


class Settings(msgspec.Struct, frozen=True):
    """Numbers on which estimates and deadlines depend."""

    policy: str = ""
    """Name of the policy; empty while no header was read."""
    dispatch_delay_ns: int = 500_000
    """Time after its sending before which no action can begin."""
    response_margin_ns: int = 3_000_000
    """Time that is taken off each deadline for the way back."""
    estimate_rank: int = RANK
    """Same as `SchedulerConfig.estimate_rank`."""

    @classmethod
    def of(cls, about: dict[str, Any]) -> Settings:
        """Read a header's ``about``; a number that is missing or impossible is the scheduler's default."""
        scheduler = about.get("scheduler")
        known = scheduler if isinstance(scheduler, dict) else {}
        given = {}
        for name in ("dispatch_delay", "response_margin"):
            value = known.get(f"{name}_ms")
            if isinstance(value, int | float) and 0 <= value < 1e9:
                given[f"{name}_ns"] = round(value * 1_000_000)
        # Releases without the choice took the maximum.
        rank = known.get("estimate_rank", 1 if known else RANK)
        if isinstance(rank, int) and 1 <= rank <= HIGHEST_RANK:
            given["estimate_rank"] = rank
        return cls(policy=str(known.get("policy", "")), **given)

    def cluster(self) -> Cluster:
        """Return an empty state with these settings, on which the fold begins."""
        return Cluster(self.estimate_rank, self.dispatch_delay_ns, self.response_margin_ns)
