"""The contents of an event log: its entries, the format's versions, and the settings in a header."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.cluster.rolling import HIGHEST_RANK, RANK
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command
from mainspring.messages.events import Event
from mainspring.messages.snapshot import Told


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


FORMAT = 8
"""Version of the log's format. In version 1 the commands that an event brought about came behind the next
`Wakeup`, and what is noted and sent to nobody (`commands.Note`) was not written. Commands have no evidence
(`messages.evidence`) in versions 1 and 2, there are no OPENs before version 4, no request is refused early
before version 5, no cluster grows or shrinks before version 6, no worker moves to another controller by the
scheduler's decision before version 7, and before version 8 no model's queue has a bound of its own and
nothing is said of what gateways refuse themselves."""
IN_PLACE = 2
"""First version in which every command stands where it changed the state."""
EVIDENCE = 3
"""First version in which INFER, LOAD and rejections say what they were computed from."""
REFUSED_EARLY = 5
"""First version in which a request may be refused early."""


class SegmentHeader(msgspec.Struct, frozen=True, tag="segment_header"):
    """The first entry of each segment."""

    format: int
    run: int
    """Unix time in nanoseconds at which the writer was opened: the same in all segments of one run."""
    first_of_run: bool
    unix_ns: int
    """Unix time of the record, to relate the controller's monotonic clock to the calendar."""
    about: dict[str, Any]
    """Facts about the writer that a reader must know: for the controller, the scheduler's configuration."""


Entry = Event | Command | SegmentHeader | Told
Record = tuple[int, Entry]
