"""The state at places throughout a run, so that any instant of it can be shown without all before it.

One pass over the run, a piece at a time, with only what is open in memory (`telemetry.lifecycles`), takes a
snapshot (`cluster.snapshot`) every 640 KiB or more, and the run at a glance (`RunOverview`).
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgpack
import msgspec

from mainspring.cluster.snapshot import snapshot
from mainspring.console.payloads import Overview
from mainspring.messages.codec import BadMessage, Codec
from mainspring.messages.estimates import InferEstimate, LoadEstimate
from mainspring.messages.snapshot import ModelServed, ModelState, Told
from mainspring.telemetry.entries import Entry, SegmentHeader
from mainspring.telemetry.lifecycles import Lifecycles, RequestLife
from mainspring.telemetry.percentiles import DurationHistogram
from mainspring.telemetry.runs import Run

FIRST_STEP_NS = 1_000_000_000
MOST_STEPS = 480
"""Most steps: about as many as a slider has pixels to distinguish."""


class _Step:
    """Counts of what happened within one step."""

    __slots__ = ("in_time", "late", "latencies", "offered", "rejected")

    def __init__(self) -> None:
        self.offered = self.in_time = self.late = self.rejected = 0
        self.latencies = DurationHistogram()

    def merge(self, other: _Step) -> None:
        """Add what happened in another step."""
        self.offered += other.offered
        self.in_time += other.in_time
        self.late += other.late
        self.rejected += other.rejected
        self.latencies.merge(other.latencies)


class RunOverview:
    """Counts the requests of a run as they end."""

    def __init__(self, first_ns: int) -> None:
        """The run begins at ``first_ns``."""
        self._first_ns = first_ns
        self._step_ns = FIRST_STEP_NS
        self._steps: list[_Step] = []

    def ended(self, arrived_ns: int, ended_ns: int, outcome: str) -> None:
        """A request has ended: ``in_time``, ``late``, ``rejected`` or ``cancelled``."""
        self._at(arrived_ns).offered += 1
        step = self._at(ended_ns)
        if outcome == "rejected":
            step.rejected += 1
        elif outcome in ("in_time", "late"):
            step.in_time += outcome == "in_time"
            step.late += outcome == "late"
            step.latencies.add(ended_ns - arrived_ns)

    def payload(self, reached_ns: int, *, whole: bool) -> Overview:
        """Return what was counted up to ``reached_ns``, the run's end if the run is ``whole``."""
        steps = self._steps
        return Overview(
            first_ns=self._first_ns,
            step_ns=self._step_ns,
            reached_ns=reached_ns,
            whole=whole,
            offered=[each.offered for each in steps],
            in_time=[each.in_time for each in steps],
            late=[each.late for each in steps],
            rejected=[each.rejected for each in steps],
            p99_ms=[each.latencies.percentile_ms(99) for each in steps],
        )

    def _at(self, at_ns: int) -> _Step:
        index = max(0, at_ns - self._first_ns) // self._step_ns
        while index >= MOST_STEPS:
            self._halve()
            index = max(0, at_ns - self._first_ns) // self._step_ns
        while len(self._steps) <= index:
            self._steps.append(_Step())
        return self._steps[index]

    def _halve(self) -> None:
        """Let two steps become one."""
        steps, self._step_ns = self._steps, 2 * self._step_ns
        for even, odd in zip(steps[::2], steps[1::2], strict=False):
            even.merge(odd)
        self._steps = steps[::2]


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
    """Return the records before the first invalid one, and where that begins."""
    records: list[Timed] = []
    start = 0
    for end in ends:
        try:
            records.append(_RECORD.decode(data[start:end]))
        except BadMessage:
            break
        start = end
    return records, start


STEP_BYTES = 640 << 10
"""Least number of bytes of the log between two checkpoints."""
LEAD_BYTES = 12 << 20
"""Most bytes of the log that are read before an instant so that what led up to it is known, if that is more
than two steps."""
MOST = 128
"""Notes of one run; in a longer one they are further apart. One takes about 0.5 MB for 4,000 models on 12
workers."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The state before the record at a place of the log."""

    at_ns: int
    """Instant of the last record before."""
    place: Place
    read_bytes: int
    """Bytes of the run that lie before it."""
    header: Timed | None
    """The last segment's."""
    entries: tuple[Told, ...]
    """The state, as `cluster.snapshot.snapshot` has it."""

    def snapshot(self) -> Iterator[tuple[int, Entry | Told]]:
        """Yield a header and the state, as records."""
        if self.header is not None:
            yield self.header
        for entry in self.entries:
            yield self.at_ns, entry


class Checkpoints:
    """The notes of one run, as far as it has been gone through."""

    def __init__(self, run: Run) -> None:
        self.ended = False
        """True once the whole run has been read."""
        self._reader = LogReader(run.paths)
        self._step_bytes = max(STEP_BYTES, run.size_bytes // MOST)
        self.overview = RunOverview(run.first_ns)
        """Outcomes of the requests in the part that has been read."""
        self._lifecycles = Lifecycles(on_request=self._count)
        self._header: Timed | None = None
        self._known: dict[tuple[object, ...], Told] = {}
        """Entry of the last checkpoint for each subject, so that checkpoints share what does not change."""
        self._since_bytes = self._read_bytes = 0
        self._found = [self._note(run.first_ns)]

    @property
    def reached_ns(self) -> int:
        """The instant up to which the run has been gone through."""
        return self._lifecycles.now_ns

    def before(self, at_ns: int, lead_ns: int = 0) -> Checkpoint:
        """Return where to begin for an instant, so that what led up to it is known.

        The last note but one before it, or an earlier one: the last that is ``lead_ns`` before it, if no more
        than `LEAD_BYTES` have to be read for that.
        """
        found = self._found
        index = max(0, bisect_right(found, at_ns, key=lambda each: each.at_ns) - 2)
        end_bytes = found[min(index + 2, len(found) - 1)].read_bytes
        while index and at_ns - found[index].at_ns < lead_ns:
            if end_bytes - found[index - 1].read_bytes > LEAD_BYTES:
                break
            index -= 1
        return found[index]

    def work(self) -> None:
        """Go through another piece of the run."""
        before = self._reader.place
        records = self._reader.piece()
        if not records:
            self.ended = True
            return
        after = self._reader.place
        for now_ns, entry in records:
            if isinstance(entry, SegmentHeader):
                self._header = now_ns, entry
            self._lifecycles.take(now_ns, entry)
        moved = after.offset_bytes - (before.offset_bytes if after.segment == before.segment else 0)
        self._since_bytes += max(0, moved)
        self._read_bytes += max(0, moved)
        if self._since_bytes >= self._step_bytes:
            self._since_bytes = 0
            self._found.append(self._note(self._lifecycles.now_ns))

    def close(self) -> None:
        """Close the log."""
        self._reader.close()

    def _count(self, life: RequestLife) -> None:
        if life.ended_ns is not None:
            self.overview.ended(life.arrived_ns, life.ended_ns, life.outcome)

    def _note(self, at_ns: int) -> Checkpoint:
        parts = snapshot(self._lifecycles.cluster)
        entries = tuple([self._shared(entry) for part in parts for entry in part])
        return Checkpoint(at_ns, self._reader.place, self._read_bytes, self._header, entries)

    def _shared(self, entry: Told) -> Told:
        """Return what the last note has of the same subject, if it is the same."""
        match entry:
            case ModelServed(model=spec):
                subject: tuple[object, ...] = (ModelServed, spec.name)
            case InferEstimate():
                subject = InferEstimate, entry.device_kind, entry.executable, entry.batch_sizes
            case LoadEstimate():
                subject = LoadEstimate, entry.device_kind, entry.weights_bytes
            case ModelState():
                subject = ModelState, entry.model
            case _:
                return entry
        known = self._known.get(subject)
        if known == entry:
            return known
        self._known[subject] = entry
        return entry
