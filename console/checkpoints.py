"""The state at places throughout a run, so that any instant of it can be shown without all before it.

One pass over the run from its beginning, a piece at a time, with only what is open in memory
(`telemetry.lifecycles`); every 640 KiB or more it takes a snapshot of the state (`cluster.snapshot`).
Snapshots share what does not change between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from mainspring.cluster.snapshot import snapshot
from mainspring.console.log_reader import LogReader, Place, Timed
from mainspring.console.overview import RunOverview
from mainspring.messages.snapshot import InferEstimate, LoadEstimate, ModelServed, ModelState, Told
from mainspring.telemetry.entries import Entry, SegmentHeader
from mainspring.telemetry.lifecycles import Lifecycles, RequestLife
from mainspring.telemetry.runs import Run

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
