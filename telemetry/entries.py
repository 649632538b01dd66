"""The contents of an event log: its entries, and the versions of its format."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.messages.actions import Command
from mainspring.messages.events import Event
from mainspring.messages.snapshot import Told

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
