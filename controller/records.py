"""The event stream as bytes: each record is encoded once, for the log and for all observers together.

Only while somebody observes; otherwise the log encodes for itself, or nobody does.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from mainspring.messages.events import Wakeup
from mainspring.telemetry.log import EventLogWriter

_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
"""How MessagePack begins an array whose length takes 32 bits."""


class RecordArray:
    """Records ``[now_ns, entry]`` on their way to observers, as one MessagePack array."""

    def __init__(self) -> None:
        self.count = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(_ARRAY.size)

    def append(self, now_ns: int, entry: Any) -> int:
        """Add a record; return where it begins. Raises OverflowError, with nothing added, on a number beyond
        64 bits."""
        before = len(self._buffer)
        try:
            self._encoder.encode_into((now_ns, entry), self._buffer, -1)
        except OverflowError:
            del self._buffer[before:]
            raise
        self.count += 1
        return before

    def since(self, start: int) -> bytes:
        """Return what was added from there on."""
        return bytes(memoryview(self._buffer)[start:])

    def take(self) -> bytes:
        """Return the array, and begin another."""
        _ARRAY.pack_into(self._buffer, 0, _ARRAY_32, self.count)
        whole = bytes(self._buffer)
        self._buffer = bytearray(_ARRAY.size)
        self.count = 0
        return whole


class SharedRecords:
    """What `controller.feed` writes to while there are observers: the log, and what they are to get next."""

    def __init__(self, log: EventLogWriter | None) -> None:
        self.waiting = RecordArray()
        """What observers are to get next."""
        self._log = log

    def append(self, now_ns: int, entry: Any) -> None:
        """Add a record to both; Wakeups, of which there is one for each turn, only to the log.

        Raises OverflowError, with nothing added, on a number beyond 64 bits.
        """
        if type(entry) is Wakeup:
            if self._log is not None:
                self._log.append(now_ns, entry)
            return
        start = self.waiting.append(now_ns, entry)
        if self._log is not None:
            self._log.append_encoded(now_ns, self.waiting.since(start))
