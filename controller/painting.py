"""A picture of how things stand, made in slices between turns (`messages.observing`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mainspring.controller.records import RecordArray
from mainspring.messages.observing import Stage
from mainspring.scheduler.picture import Told
from mainspring.telemetry.log import SegmentHeader

SLICE_NS = 250_000
"""How long one slice takes, but for the part that it ends with."""


class Painting:
    """One picture under way."""

    def __init__(self, header: SegmentHeader, told: Iterator[Told], clock: Callable[[], int]) -> None:
        """``told``: its parts behind the header; ``clock`` says how long they take."""
        self.stage = Stage.BEGIN
        """Of the next slice; `Stage.LIVE` once there is none."""
        self._header = header
        self._told = told
        self._clock = clock
        self._records = RecordArray()

    def slice(self, now_ns: int) -> tuple[Stage, bytes]:
        """Return the next slice: what it is of the picture, and its records."""
        until_ns = self._clock() + SLICE_NS
        stage = self.stage
        if stage is Stage.BEGIN:
            self._records.append(now_ns, self._header)
        self.stage = Stage.PART
        for part in self._told:
            for at_ns, entry in part:
                # The log can't hold it either, and counts it.
                with contextlib.suppress(OverflowError):
                    self._records.append(now_ns if at_ns is None else at_ns, entry)
            if self._clock() >= until_ns:
                return stage, self._records.take()
        # What begins has to end in a message of its own.
        self.stage = Stage.END if stage is Stage.BEGIN else Stage.LIVE
        return (stage if stage is Stage.BEGIN else Stage.END), self._records.take()
