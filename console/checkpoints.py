"""How things stood at places throughout a run, so that any instant of it can be shown without all before it.

One pass over the run from its beginning, a piece at a time, with only what is open in memory
(`telemetry.lives`); every mebibyte or more it notes how things stand, as the entries of a picture
(`messages.observing`). What a note holds is mostly shared with the others: names and models.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from mainspring.console.log_reader import LogReader, Place, Timed
from mainspring.console.overview import RunOverview
from mainspring.messages.actions import Load, Release, Unload
from mainspring.messages.events import ModelAdded, WorkerJoined
from mainspring.messages.observing import Holding, OfPicture
from mainspring.telemetry.lifecycles import Held, Lifecycles, RequestLife
from mainspring.telemetry.log import Entry, SegmentHeader
from mainspring.telemetry.runs import Run

STEP_BYTES = 1 << 20
"""Between two notes, at least."""
MOST = 128
"""Notes of one run; in a longer one they are further apart. One takes about 0.5 MB for 4,000 models on 12
workers."""


class Checkpoint(msgspec.Struct, frozen=True):
    """How things stood before the record at a place."""

    at_ns: int
    """Instant of the last record before."""
    place: Place
    header: Timed | None
    """The last segment's."""
    models: tuple[ModelAdded, ...]
    workers: tuple[WorkerJoined, ...]
    holdings: tuple[Holding, ...]
    requests: tuple[Timed, ...]
    actions: tuple[Timed, ...]
    """With the instants at which they were sent."""
    asked: tuple[Timed, ...]
    """What operators asked for."""

    def picture(self) -> Iterator[tuple[int, Entry | OfPicture]]:
        """Yield the entries of a picture."""
        if self.header is not None:
            yield self.header
        yield from self.requests
        for worker in self.workers:
            yield self.at_ns, worker
        yield from self.actions
        for model in self.models:
            yield self.at_ns, model
        for holding in self.holdings:
            yield self.at_ns, holding
        yield from self.asked


class Checkpoints:
    """The notes of one run, as far as it has been gone through."""

    def __init__(self, run: Run) -> None:
        self.ended = False
        """Whether the whole run has been gone through."""
        self._reader = LogReader(run.paths)
        self._step_bytes = max(STEP_BYTES, run.size_bytes // MOST)
        self.overview = RunOverview(run.first_ns)
        """What became of the requests of the part that has been gone through."""
        self._lifecycles = Lifecycles(on_request=self._count)
        self._header: Timed | None = None
        self._models: tuple[ModelAdded, ...] = ()
        self._since_bytes = 0
        self._found = [self._note(run.first_ns)]

    @property
    def reached_ns(self) -> int:
        """The instant up to which the run has been gone through."""
        return self._lifecycles.now_ns

    def before(self, at_ns: int) -> Checkpoint:
        """Return where to begin for an instant: the last note but one before it, for what led up to it."""
        index = bisect_right(self._found, at_ns, key=lambda each: each.at_ns) - 2
        return self._found[max(0, index)]

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
            else:
                self._lifecycles.take(now_ns, entry)
        moved = after.offset_bytes - (before.offset_bytes if after.segment == before.segment else 0)
        self._since_bytes += max(0, moved)
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
        lives = self._lifecycles
        if [each.model for each in self._models] != list(lives.models.values()):
            self._models = tuple(map(ModelAdded, lives.models.values()))
        outstanding = [(life.action.worker, life.model, type(life.action)) for life in lives.actions.values()]
        moving = {(worker, model) for worker, model, kind in outstanding if kind in (Load, Release)}
        # Its pages are free, and may be another's by now, as soon as it is told to give them up.
        unloading = {(worker, model) for worker, model, kind in outstanding if kind is Unload}
        return Checkpoint(
            at_ns=at_ns,
            place=self._reader.place,
            header=self._header,
            models=self._models,
            workers=tuple(
                WorkerJoined(name, held.device_kind, held.pages) for name, held in lives.workers.items()
            ),
            holdings=tuple(_holding(name, held, moving, unloading) for name, held in lives.workers.items()),
            requests=tuple((each.arrived_ns, each.request) for each in lives.requests.values()),
            actions=tuple((each.sent_ns, each.action) for each in lives.actions.values()),
            asked=tuple(lives.asked.values()),
        )


def _holding(name: str, held: Held, moving: set[tuple[str, str]], unloading: set[tuple[str, str]]) -> Holding:
    """Return what a worker has of all its models but those that are being loaded or released."""
    resident = {
        model: resident.pages
        for model, resident in held.resident.items()
        if (name, model) not in moving and (name, model) not in unloading
    }
    return Holding(
        name,
        prepared=tuple(
            [model for model in held.prepared if model not in resident and (name, model) not in moving]
        ),
        resident=resident,
        failed={model: life.result.detail for model, life in held.failed.items() if life.result is not None},
    )
