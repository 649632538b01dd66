"""The stream that observers receive, as bytes: records of events, and snapshots in slices
(`messages.observing`).

Records are encoded many at a time, once for the log and once for all observers together: to take them apart
for the second would cost more than that.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from mainspring.cluster.snapshot import Part
from mainspring.messages.events import Wakeup
from mainspring.messages.observing import Stage
from mainspring.telemetry.entries import Record, SegmentHeader
from mainspring.telemetry.log import EventLogWriter, encoded

SLICE_NS = 250_000
"""Time that making one slice of a snapshot takes, apart from the part with which the slice ends."""
_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
"""First byte of a MessagePack array whose length takes 32 bits."""


class RecordArray:
    """Records ``[now_ns, entry]`` on their way to observers, as one MessagePack array."""

    def __init__(self) -> None:
        self.count = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(_ARRAY.size)

    def append(self, now_ns: int, entry: Any) -> None:
        """Add a record. Raises OverflowError, with nothing added, on a number beyond 64 bits."""
        before = len(self._buffer)
        try:
            self._encoder.encode_into((now_ns, entry), self._buffer, -1)
        except OverflowError:
            del self._buffer[before:]
            raise
        self.count += 1

    def append_all(self, records: Sequence[Record]) -> int:
        """Add records by one call of the encoder; return how many no record can hold."""
        data = encoded(self._encoder, records)
        if data is not None:
            self._buffer += data
            self.count += len(records)
            return 0
        left_out = 0
        for now_ns, entry in records:
            try:
                self.append(now_ns, entry)
            except OverflowError:
                left_out += 1
        return left_out

    def take(self) -> bytes:
        """Return the array, and begin another."""
        _ARRAY.pack_into(self._buffer, 0, _ARRAY_32, self.count)
        whole = bytes(self._buffer)
        self._buffer = bytearray(_ARRAY.size)
        self.count = 0
        return whole


class SharedRecords:
    """The target of `LoggedScheduler`'s records: the log, and the observers' next message, if any."""

    def __init__(self, log: EventLogWriter | None) -> None:
        self.observed = False
        """True if there are observers."""
        self.waiting = RecordArray()
        """The records of the observers' next message."""
        self._log = log

    def append_all(self, records: Sequence[Record]) -> int:
        """Add records; Wakeups, of which each turn of the loop has one, only to the log.

        Returns how many no record can hold, for a number beyond 64 bits.
        """
        left_out = 0
        if self.observed:
            left_out = self.waiting.append_all([each for each in records if type(each[1]) is not Wakeup])
        return left_out if self._log is None else self._log.append_all(records)


class SnapshotStream:
    """One snapshot under way, made in slices between the turns of the controller's loop."""

    def __init__(self, header: SegmentHeader, parts: Iterator[Part], clock: Callable[[], int]) -> None:
        """``parts``: the snapshot's parts behind the header; ``clock`` measures how long they take."""
        self.stage = Stage.BEGIN
        """The stage of the next slice; `Stage.LIVE` once there is none."""
        self._header = header
        self._snapshot = parts
        self._clock = clock
        self._records = RecordArray()

    def slice(self, now_ns: int) -> tuple[Stage, bytes]:
        """Return the next slice: its stage, and its records."""
        until_ns = self._clock() + SLICE_NS
        stage = self.stage
        if stage is Stage.BEGIN:
            self._records.append(now_ns, self._header)
        self.stage = Stage.PART
        for part in self._snapshot:
            for entry in part:
                # The log can't hold such a record either, and counts it.
                with contextlib.suppress(OverflowError):
                    self._records.append(now_ns, entry)
            if self._clock() >= until_ns:
                return stage, self._records.take()
        # The first slice and the last are different messages, however short the snapshot is.
        self.stage = Stage.END if stage is Stage.BEGIN else Stage.LIVE
        return (stage if stage is Stage.BEGIN else Stage.END), self._records.take()
