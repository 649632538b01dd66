"""A part of a run, cut out as a log of its own that every reader here opens.

What came before is not just left out: the slice begins with a *picture* that rebuilds the cluster as it was
at the cut, so that its reader knows which models there were, what each worker held, what was under way
and what waited:

* `ModelAdded` for each model, `WorkerJoined` for each worker with what it had prepared and resident, and
  what operators had set;
* the requests that had not ended, the outstanding actions, and the PREPAREs that had failed (with their
  results), as they stood in the log;
* a snapshot (`cluster.snapshot`) with all the rest: estimates with their samples, executors' timelines.

Requests and actions of the picture keep their own instants, so that latencies are right; the rest is put at
the first of these, or at the cut. A slice from the middle does not claim to be its run from the beginning
(``first_of_run``): the policy's own notes are not in a log, so it can't be decided again command for command.
A slice from a run's beginning has no picture and can.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from mainspring.cluster.placements import PREPARED_STATES, State
from mainspring.cluster.residency import of_worker
from mainspring.cluster.snapshot import snapshot
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Command, Prepare, Result, Timed, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import Event, ModelAdded, Resident, WorkerJoined
from mainspring.telemetry.entries import Entry, SegmentHeader
from mainspring.telemetry.lifecycles import Lifecycles
from mainspring.telemetry.log import read_segment, segments
from mainspring.telemetry.runs import SLICE, LogProblem, Run, SliceNote

_WRITE_BYTES = 1 << 20


class Sliced(msgspec.Struct, frozen=True):
    """The slice that was written."""

    from_ns: int
    to_ns: int
    records: int
    """Number of records of the time that was asked for; headers are not counted."""
    picture: int
    """Number of records before them: the picture that rebuilds the cluster as it was."""
    size_bytes: int


def picture(lives: Lifecycles, from_ns: int) -> Iterator[tuple[int, Event | Command]]:
    """Yield records that rebuild a cluster as it stands before ``from_ns``, ordered by their instants."""
    cluster = lives.cluster
    requests = list(lives.requests())
    timed = [life for life in lives.actions() if isinstance(life.action, Timed | Unload)]
    slow = [life for life in lives.actions() if not isinstance(life.action, Timed | Unload)]
    first_ns = min([from_ns, *(each.arrived_ns for each in requests), *(each.sent_ns for each in timed)])
    for model in cluster.models.values():
        yield first_ns, ModelAdded(model.spec)
    for worker in cluster.workers.values():
        yield first_ns, _joined(cluster, worker)
    for _, asked in cluster.operations.values():
        yield first_ns, asked
    for worker in cluster.workers.values():
        for placement in of_worker(worker):
            if placement.state is State.FAILED:
                yield first_ns, Prepare(0, worker.name, placement.model.spec)
                status, detail = Status.ENGINE_ERROR, placement.detail
                yield first_ns, Result(0, worker.name, status, first_ns, first_ns, detail=detail)
            elif placement.state in (State.CLOSED, State.OPENING):
                yield first_ns, Prepare(0, worker.name, placement.model.spec)
                yield first_ns, Result(0, worker.name, Status.NOT_OPEN, first_ns, first_ns)
    for life in slow:
        yield first_ns, life.action
    # A request comes before the INFER that has it even if both happened at one instant.
    arrivals = [(each.arrived_ns, 0, each.request) for each in requests]
    sent = [(each.sent_ns, 1, each.action) for each in timed]
    for at_ns, _, entry in sorted([*arrivals, *sent], key=lambda each: each[:2]):
        yield at_ns, entry


def _joined(cluster: Cluster, worker: Worker) -> WorkerJoined:
    """Return a worker with what it has prepared and resident; what is being released is prepared still."""
    states = (*PREPARED_STATES, State.RELEASING, State.BROKEN)
    placements = of_worker(worker)
    prepared = {
        name: model.on(worker.kind).artifact
        for name, model in cluster.models.items()
        if model.prepared & worker.bit
    }
    prepared |= {
        each.model.name: each.model.on(worker.kind).artifact for each in placements if each.state in states
    }
    return WorkerJoined(
        worker.name,
        worker.device_kind,
        worker.pages.size,
        prepared,
        tuple(
            Resident(each.model.name, each.model.on(worker.kind).artifact, each.pages)
            for each in placements
            if each.state is State.RESIDENT
        ),
        worker.targets,
    )


def slice_run(run: Run, target: Path, from_ns: int, to_ns: int) -> Sliced:
    """Write ``from_ns <= instant < to_ns`` of a run into the new folder ``target``.

    One segment of the source at a time is in memory, and what was open at the cut. Raises `LogProblem` if the
    run has no record then or ``target`` holds a log already, and OSError if something can't be read or
    written.
    """
    if target.exists() and segments(target):
        raise LogProblem(f"{target} holds a log already; choose another folder")
    target.mkdir(parents=True, exist_ok=True)
    writer = _Writer(target)
    try:
        return _Slicer(run, writer, from_ns, to_ns).run()
    except BaseException:
        writer.remove()
        raise
    finally:
        writer.close()


class _Slicer:
    """One pass over a run."""

    def __init__(self, run: Run, writer: _Writer, from_ns: int, to_ns: int) -> None:
        self._run = run
        self._writer = writer
        self._from_ns = from_ns
        self._to_ns = to_ns
        self._lifecycles = Lifecycles()
        self._header: SegmentHeader | None = None
        self._segment_due = False
        self._whole = run.whole
        self._note: SliceNote | None = None
        self._pictured = 0
        self._records = 0
        self._last_ns = from_ns

    def run(self) -> Sliced:
        """Write the slice; raise `LogProblem` if the span has no record, and OSError as `slice_run`."""
        for path in self._run.paths:
            for now_ns, entry in read_segment(path):
                if isinstance(entry, SegmentHeader):
                    # A segment of its own for each of the source's: none grows longer than there.
                    self._header, self._segment_due = entry, True
                    self._lifecycles.take(now_ns, entry)
                elif now_ns < self._to_ns:
                    self._take(now_ns, entry)
                else:
                    return self._finish()
        return self._finish()

    def _take(self, now_ns: int, entry: Entry) -> None:
        if now_ns < self._from_ns:
            self._whole = False
            self._lifecycles.take(now_ns, entry)
            return
        if self._note is None:
            self._begin(now_ns)
        elif self._segment_due:
            self._begin_segment(now_ns)
        self._writer.write(now_ns, entry)
        self._records += 1
        self._last_ns = now_ns

    def _begin(self, now_ns: int) -> None:
        """Write the first header and the picture."""
        before = [] if self._whole else list(picture(self._lifecycles, self._from_ns))
        from_ns = now_ns if self._whole else self._from_ns
        self._pictured = len(before)
        self._note = SliceNote(str(self._run.paths[0].parent), from_ns, self._to_ns, self._pictured)
        self._begin_segment(before[0][0] if before else from_ns)
        for at_ns, entry in before:
            self._writer.write(at_ns, entry)
        if not self._whole:
            for part in snapshot(self._lifecycles.cluster):
                for state in part:
                    self._writer.write(self._from_ns, state)

    def _begin_segment(self, now_ns: int) -> None:
        assert self._header is not None, "a segment that has no header is not part of a run"
        header = self._header
        self._segment_due = False
        about = {**header.about, SLICE: msgspec.to_builtins(self._note)}
        unix_ns = self._run.unix_ns(now_ns)
        whole = self._whole and not self._writer.segments
        self._writer.begin_segment(now_ns, SegmentHeader(header.format, header.run, whole, unix_ns, about))

    def _finish(self) -> Sliced:
        if self._note is None:
            raise LogProblem(_nothing_there(self._run, self._from_ns, self._to_ns))
        self._writer.close()
        to_ns = min(self._to_ns, self._last_ns + 1)
        return Sliced(self._note.from_ns, to_ns, self._records, self._pictured, self._writer.size_bytes)


def _nothing_there(run: Run, from_ns: int, to_ns: int) -> str:
    wanted = f"{(from_ns - run.first_ns) / 1e9:.3f} s and {(to_ns - run.first_ns) / 1e9:.3f} s"
    return (
        f"run {run.number} has no record between {wanted} of its start: it lasts {run.seconds:.3f} s, from "
        f"{run.wall(run.first_ns)} to {run.wall(run.last_ns)}"
    )


class _Writer:
    """Writes segments; buffers as much as it says at the top."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self.segments: list[Path] = []
        self.size_bytes = 0

    def begin_segment(self, now_ns: int, header: SegmentHeader) -> None:
        """Close the segment before and open the next file, whose first record is ``header``."""
        self.close()
        path = self._target / f"{len(self.segments) + 1:08d}.events"
        self._file = path.open("xb")
        self.segments.append(path)
        self.write(now_ns, header)

    def write(self, now_ns: int, entry: Entry) -> None:
        """Add a record to the open segment; it reaches the file when the buffer is full."""
        self._encoder.encode_into((now_ns, entry), self._buffer, -1)
        if len(self._buffer) >= _WRITE_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is buffered and close the segment, if one is open."""
        if self._file is not None:
            self._flush()
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Take back what was written: a part of a slice would be taken for the whole."""
        self._buffer.clear()
        self.close()
        for path in self.segments:
            path.unlink()
        with contextlib.suppress(OSError):
            self._target.rmdir()

    def _flush(self) -> None:
        assert self._file is not None
        self._file.write(self._buffer)
        self.size_bytes += len(self._buffer)
        self._buffer.clear()
