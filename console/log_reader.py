"""Reads a run's records a piece at a time, from any place in it that was read before."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgpack

from mainspring.messages.codec import BadMessage, Codec
from mainspring.telemetry.entries import Entry

_LOGGER = logging.getLogger(__name__)
PIECE_BYTES = 64 << 10
"""Bytes that are read at a time, unless a single record is longer."""
_ARRAY_32 = struct.Struct(">BI")
_RECORD: Codec[tuple[int, Entry]] = Codec(tuple[int, Entry])
_RECORDS: Codec[list[tuple[int, Entry]]] = Codec(list[tuple[int, Entry]])

Timed = tuple[int, Entry]


class Place(NamedTuple):
    """The position of a record in a run."""

    segment: int
    """Index of the segment within the run."""
    offset_bytes: int


BEGINNING = Place(0, 0)


class LogReader:
    """See the module's docstring. Raises OSError where a segment can't be read."""

    def __init__(self, paths: Sequence[Path], place: Place = BEGINNING) -> None:
        """Read these segments from a place on."""
        self.place = place
        """Position at which the next piece begins."""
        self._paths = paths
        self._file: BinaryIO | None = None
        self._rest = b""

    def piece(self) -> list[Timed]:
        """Return the next records, some hundreds; none at the end of the run.

        A segment whose end was cut off or is damaged is read up to there, as `read_entries` does.
        """
        while self.place.segment < len(self._paths):
            if self._file is None:
                self._file = self._paths[self.place.segment].open("rb")
                self._file.seek(self.place.offset_bytes)
                self._rest = b""
            data = self._file.read(PIECE_BYTES)
            if data:
                records = self._take(self._rest + data)
                if records:
                    return records
            else:
                self._next_segment()
        return []

    def close(self) -> None:
        """Close the segment that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, data: bytes) -> list[Timed]:
        """Return the whole records that data begins with; what is left waits for more."""
        unpacker = msgpack.Unpacker(max_buffer_size=len(data))
        unpacker.feed(data)
        ends = []
        damage = ""
        try:
            while True:
                unpacker.skip()
                ends.append(unpacker.tell())
        except msgpack.OutOfData:
            pass
        except ValueError as error:
            damage = str(error)
        end = ends[-1] if ends else 0
        try:
            records = _RECORDS.decode(_ARRAY_32.pack(0xDD, len(ends)) + data[:end])
        except BadMessage as error:
            records, end = _until_damaged(data, ends)
            damage = str(error)
        self.place = Place(self.place.segment, self.place.offset_bytes + end)
        self._rest = data[end:]
        if damage:
            path = self._paths[self.place.segment]
            at = self.place.offset_bytes
            _LOGGER.warning("%s is damaged at byte %d (%s); its rest is passed over", path, at, damage)
            self._next_segment()
        return records

    def _next_segment(self) -> None:
        self.close()
        self.place = Place(self.place.segment + 1, 0)


def _until_damaged(data: bytes, ends: list[int]) -> tuple[list[Timed], int]:
    """Return the records before the first that is none, and where it begins."""
    records: list[Timed] = []
    start = 0
    for end in ends:
        try:
            records.append(_RECORD.decode(data[start:end]))
        except BadMessage:
            break
        start = end
    return records, start
