"""The event log: all that went into the scheduler and all that came out, with the instant of each.

A folder of segments ``NNNNNNNN.events``, numbered upwards. A segment is a row of MessagePack records
``[now_ns, entry]`` without separators; ``now_ns`` is on the controller's monotonic clock. An entry is

* a `SegmentHeader`, first in each segment and nowhere else,
* an event: ``Scheduler.handle(now_ns, event)`` was called,
* of a slice (`telemetry.slices`), an entry of a snapshot: the state as it was where the slice begins,
* the event `Wakeup`, moreover: ``Scheduler.schedule(now_ns)`` was called next,
* a command: it came out of the call for which the last event stands. So `cluster.apply`, handed every event
  and every command in the order of the log, has the scheduler's own state.

**Replay.** A scheduler changes its state in ``schedule`` even when no command comes out of it (an alarm
rings, a request expires unseen), so the commands alone do not tell when it was called. Hence a `Wakeup` for
**every** call, whether or not events stand before it: a fresh scheduler of the configuration in
``SegmentHeader.about`` that is handed every event in the order of the log, and asked to ``schedule`` after
each `Wakeup`, puts out the very commands that follow. This needs a run from its first segment on
(``first_of_run``); the size bound deletes the oldest segments.

Records are buffered: `EventLogWriter.flush` hands them to the operating system, nothing waits for the disk.
What a crash cuts off is the end of one segment; readers stop there and go on with the next.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import msgpack
import msgspec

from mainspring.messages.actions import Command
from mainspring.messages.codec import BadMessage, Codec
from mainspring.messages.events import Event
from mainspring.messages.snapshot import Told
from mainspring.telemetry.entries import FORMAT, Entry, Record, SegmentHeader

_SUFFIX = ".events"
_BUFFER_BYTES = 64 * 1024
HEADER_BYTES = 1 << 20
"""More than any header takes."""
_LOGGER = logging.getLogger(__name__)


class NewerFormat(OSError):
    """A log was written by a later release."""


_SNAPSHOT = frozenset(get_args(Told))

_RECORD: Codec[tuple[int, Entry]] = Codec(tuple[int, Entry])


def encoded(encoder: msgspec.msgpack.Encoder, records: Sequence[Record]) -> memoryview | None:
    """Return records one behind the other; None if one has an integer beyond 64 bits."""
    try:
        data = encoder.encode(records)
    except OverflowError:
        return None
    count = len(records)
    # The bytes that begin an array in MessagePack: fixarray, array 16 or array 32.
    begins = 1 if count < 1 << 4 else 3 if count < 1 << 16 else 5
    return memoryview(data)[begins:]


class EventLogWriter:
    """Appends to a log, in a segment of its own for each run; bounded in size; never raises after opening.

    An error of the file system (disk full, folder gone) switches the log off for good: one warning, then
    ``problem`` says why and ``dropped`` counts what was not written.
    """

    def __init__(
        self,
        directory: Path | str,
        segment_bytes: int = 64 << 20,
        max_bytes: int = 1 << 30,
        about: dict[str, Any] | None = None,
    ) -> None:
        """Open a new segment after those that are there; make the folder if it is missing.

        ``max_bytes`` bounds all segments together, the one being written included; the oldest are deleted.
        Raises ValueError unless ``0 < segment_bytes <= max_bytes``.
        """
        if not 0 < segment_bytes <= max_bytes:
            raise ValueError(
                f"an event log needs 0 < segment_bytes <= max_bytes, not segment_bytes={segment_bytes}, "
                f"max_bytes={max_bytes}"
            )
        self.problem: str | None = None
        """Reason why the log is off; None while it is written."""
        self.dropped = 0
        """Records that were not written because the log is off."""
        self._directory = Path(directory)
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._about = about or {}
        self.run = time.time_ns()
        """Same as `SegmentHeader.run`."""
        self._first_of_run = True
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._buffered = 0
        self._file = -1
        self._written_bytes = 0
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._open_segment(time.monotonic_ns())
        except OSError as error:
            self._switch_off(error)

    def append(self, now_ns: int, entry: Entry) -> None:
        """Add a record. Raises OverflowError on an integer beyond 64 bits, with nothing added."""
        if self.problem is not None:
            self.dropped += 1
            return
        before = len(self._buffer)
        try:
            self._encoder.encode_into((now_ns, entry), self._buffer, -1)
        except OverflowError:
            del self._buffer[before:]
            raise
        self._buffered += 1
        if (
            len(self._buffer) >= _BUFFER_BYTES
            or self._written_bytes + len(self._buffer) >= self._segment_bytes
        ):
            self._write_out(now_ns)

    def append_all(self, records: Sequence[Record]) -> int:
        """Add records in their order, by one call of the encoder; return how many no record can hold."""
        if self.problem is not None:
            self.dropped += len(records)
            return 0
        data = encoded(self._encoder, records)
        held_bytes = self._written_bytes + len(self._buffer)
        if data is None or held_bytes + len(data) >= self._segment_bytes:
            return self._append_each(records)
        self._buffer += data
        self._buffered += len(records)
        if len(self._buffer) >= _BUFFER_BYTES:
            self._write_out(records[-1][0])
        return 0

    def _append_each(self, records: Sequence[Record]) -> int:
        left_out = 0
        for now_ns, entry in records:
            try:
                self.append(now_ns, entry)
            except OverflowError:
                left_out += 1
        return left_out

    def flush(self) -> None:
        """Hand all records to the operating system."""
        if self.problem is None and self._buffer:
            try:
                self._write_buffer()
            except OSError as error:
                self._switch_off(error)

    def close(self) -> None:
        """Flush, and close the segment. Appending afterwards only counts as dropped."""
        self.flush()
        if self.problem is None:
            self.problem = "closed"
            os.close(self._file)

    def _write_out(self, now_ns: int) -> None:
        try:
            self._write_buffer()
            if self._written_bytes >= self._segment_bytes:
                os.close(self._file)
                self._file = -1
                self._open_segment(now_ns)
        except OSError as error:
            self._switch_off(error)

    def _write_buffer(self) -> None:
        view = memoryview(bytes(self._buffer))
        while view:
            count = os.write(self._file, view)
            self._written_bytes += count
            view = view[count:]
        self._buffer.clear()
        self._buffered = 0

    def _open_segment(self, now_ns: int) -> None:
        existing = segments(self._directory)
        self._make_room(existing)
        number = int(existing[-1].stem) + 1 if existing else 1
        path = self._directory / f"{number:08d}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._written_bytes = 0
        header = SegmentHeader(FORMAT, self.run, self._first_of_run, time.time_ns(), self._about)
        self._first_of_run = False
        self._encoder.encode_into((now_ns, header), self._buffer, 0)
        self._buffered = 1
        self._write_buffer()

    def _make_room(self, existing: list[Path]) -> None:
        sizes = [path.stat().st_size for path in existing]
        total_bytes = sum(sizes)
        for path, size_bytes in zip(existing, sizes, strict=True):
            if total_bytes + self._segment_bytes <= self._max_bytes:
                return
            path.unlink()
            total_bytes -= size_bytes

    def _switch_off(self, error: OSError) -> None:
        self.problem = f"{error.strerror or error} ({self._directory})"
        self.dropped += self._buffered
        self._buffer.clear()
        if self._file >= 0:
            os.close(self._file)
        _LOGGER.warning(
            "the event log is off until the next start: %s; serving goes on without it", self.problem
        )


def segments(directory: Path | str) -> list[Path]:
    """Return the log's segments, oldest first."""
    found = [path for path in Path(directory).glob(f"*{_SUFFIX}") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def read_entries(
    directory: Path | str, *, last_run: bool = False
) -> Iterator[tuple[int, Event | Command | SegmentHeader]]:
    """Yield every record ``(now_ns, entry)``, oldest first, headers included, but no snapshot.

    With ``last_run`` only those of the last run: the monotonic clock starts again with the machine, so that
    instants of two runs can't be compared. A segment whose end was cut off or is damaged is read up to there,
    with a warning if it is damaged. Raises OSError if the folder or a segment can't be read.
    """
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"{directory} is not an event log: there is no such folder")
    paths = segments(directory)
    first = len(paths) - 1 if last_run else 0
    while first > 0 and not _begins_run(paths[first]):
        first -= 1
    for path in paths[max(first, 0) :]:
        for now_ns, entry in read_segment(path):
            if type(entry) not in _SNAPSHOT:
                yield now_ns, cast("Event | Command | SegmentHeader", entry)


def read_log(directory: Path | str, *, last_run: bool = False) -> Iterator[tuple[int, Event | Command]]:
    """Yield the records ``(now_ns, event or command)`` only, oldest first; otherwise as `read_entries`."""
    for now_ns, entry in read_entries(directory, last_run=last_run):
        if not isinstance(entry, SegmentHeader):
            yield now_ns, entry


def _begins_run(path: Path) -> bool:
    header = segment_header(path)
    return header is not None and header[1].first_of_run


def segment_header(path: Path) -> tuple[int, SegmentHeader] | None:
    """Return a segment's header with its instant, or None if there is none; reads only its beginning."""
    now_ns, header = next(read_segment(path, at_most_bytes=HEADER_BYTES), (0, None))
    return (now_ns, header) if isinstance(header, SegmentHeader) else None


def last_instant_ns(path: Path) -> int | None:
    """Return the instant of the last record that `read_segment` yields, without decoding the others."""
    data = path.read_bytes()
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
    unpacker.feed(data)
    start = end = 0
    try:
        while True:
            unpacker.skip()
            start, end = end, unpacker.tell()
    except (msgpack.OutOfData, ValueError):
        pass
    try:
        return _RECORD.decode(memoryview(data)[start:end])[0]
    except BadMessage:
        # It is damaged, and a record before it may be, too.
        instants = [now_ns for now_ns, _ in read_segment(path)]
        return instants[-1] if instants else None


def read_segment(path: Path, *, at_most_bytes: int = -1) -> Iterator[tuple[int, Entry]]:
    """Yield the records of one segment, or of its first ``at_most_bytes``; otherwise as `read_entries`.

    Raises `NewerFormat` for a segment that a later release wrote.
    """
    with path.open("rb") as file:
        data = file.read(at_most_bytes)
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
    unpacker.feed(data)
    view = memoryview(data)
    while True:
        start = unpacker.tell()
        try:
            unpacker.skip()
            record = _RECORD.decode(view[start : unpacker.tell()])
        except msgpack.OutOfData:
            return
        except (BadMessage, ValueError) as error:
            _LOGGER.warning("%s is damaged at byte %d (%s); its rest is passed over", path, start, error)
            return
        if not start and isinstance(record[1], SegmentHeader) and record[1].format > FORMAT:
            raise NewerFormat(
                f"{path} has version {record[1].format} of the log's format, and this release reads up to "
                f"version {FORMAT}: read it with the release that wrote it, or a later one"
            )
        yield record
