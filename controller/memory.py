"""The memory that must outlive a controller: changes of what is served, and estimates.

It is kept in a file of lines, each a JSON object behind its checksum. The first lines are a snapshot, as the
header says; granted changes are appended. When the file is opened, and now and then, it is written again
without the lines that later ones undo. It has to outlive the controller's process, but not the machine, with
which the run ends; so lines are handed to the operating system and not forced to disk.

A line that was not written whole, at the file's end, is passed over. Damage anywhere else is told, and
nothing is read: to go on with half of it would take models from clients in silence.

Controllers that stand by keep the same memory: they are told each line (`messages.following`).
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mainspring.messages.estimates import (
    DurationState,
    EstimateState,
    InferEstimate,
    LoadEstimate,
    LoadRates,
    steady,
    subject_of,
)
from mainspring.messages.events import OperatorAsked, Remembered
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import (
    AssignModel,
    ResumeWorker,
    SetDefaultSlo,
    SetGoodputWeight,
    SetGraph,
    SetMaxQueue,
    UnpinModel,
    subject,
)
from mainspring.messages.served import ServedModel

_LOGGER = logging.getLogger(__name__)


class Added(msgspec.Struct, frozen=True, tag="added"):
    """A client added a model."""

    model: ModelSpec


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """A client removed a model."""

    name: str


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A worker was sent to another controller, or has come back from there: then ``controller`` is empty."""

    worker: str
    controller: str


class Learnt(msgspec.Struct, frozen=True, tag="learnt"):
    """A graph's steps have so many rows for each row of a request (`messages.queries.QueryStep.share`)."""

    graph: str
    shares: dict[str, float]


class Header(msgspec.Struct, frozen=True, tag="memory"):
    """The first line."""

    version: int
    changes: int
    """Number of lines of the snapshot, which follow."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A controller led, or was told of one that did."""

    epoch: int


class Served(msgspec.Struct, frozen=True, tag="served"):
    """A model of a repository is served in these versions; in none: it is no more."""

    model: ServedModel


class Estimated(msgspec.Struct, frozen=True, tag="estimated"):
    """An estimate of how long actions take."""

    state: EstimateState


Change = Added | Removed | OperatorAsked | Moved | Learnt | Began | Served | Estimated
_DECODER: msgspec.json.Decoder[Header | Change] = msgspec.json.Decoder(Header | Change)
VERSION = 1
MOST_ESTIMATES = 50_000
"""Estimates that are kept; beyond it those are dropped that were kept first."""
ESTIMATES_A_BEAT = 4
"""Estimates that are looked at in each heartbeat."""
_APART = 0.1
"""Difference from the share that is kept from which on another one is kept instead."""
_UNUSED_LINES = 1000
"""The file is rewritten once it has this many lines more than twice the changes in force."""
_UNSET = (SetDefaultSlo, SetGoodputWeight, SetMaxQueue)
"""Commands that set nothing any more if only the model is named. A graph that was removed stays so, whatever
the configuration says."""


class Damaged(OSError):
    """The file of a memory can't be read; the text says what a person can do."""


class Memory:
    """The changes in force. Without a path they end with the process."""

    def __init__(self, path: str | None = None, forget: bool = False) -> None:
        """Read the file, if it exists; raise OSError if it can't be read or written, `Damaged` if it is.

        ``forget``: a damaged file is put aside, and all starts over.
        """
        self.epoch = 0
        """The highest epoch in which a controller of this memory led."""
        self.models: dict[str, ModelSpec | None] = {}
        """Added models by name; None for a removed one."""
        self.served: dict[str, ServedModel] = {}
        """Models of a repository that were served, by what clients call them."""
        self.asked: dict[tuple[str, str], OperatorAsked] = {}
        """Operators' settings, by subject (`messages.operating.subject`)."""
        self.places: dict[str, str] = {}
        """The controllers that workers were sent to, by worker."""
        self.shares: dict[str, dict[str, float]] = {}
        """Shares that were learnt of each graph's steps, by the step's name."""
        self.estimates: dict[tuple[object, ...], EstimateState] = {}
        """Estimates by subject (`messages.estimates.subject_of`)."""
        self.on_kept: Callable[[bytes], object] = lambda _line: None
        """Called with each line that is kept, for controllers that stand by."""
        self._path = None if path is None else Path(path)
        self._lines = 0
        self._problem = ""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            try:
                self._read(self._path.read_bytes())
            except Damaged:
                if not forget:
                    raise
                os.replace(self._path, self._path.with_name(f"{self._path.name}.damaged"))
                _LOGGER.warning("%s was damaged and is put aside: nothing of it is known", self._path)
                self.clear()
        self._rewrite(self._path)

    def clear(self) -> None:
        """Forget everything, to be told it again."""
        self.epoch = 0
        self.models.clear()
        self.served.clear()
        self.asked.clear()
        self.places.clear()
        self.shares.clear()
        self.estimates.clear()

    def lines(self) -> list[bytes]:
        """Return all that is in force."""
        return list(map(_line, self._changes()))

    def told(self, line: bytes) -> None:
        """Keep a line of another controller's memory; raise ValueError if it is none."""
        change = _parsed(line)
        if isinstance(change, Header):
            raise ValueError("a header is no change")
        self._keep(change)

    def began(self, epoch: int) -> None:
        """Record that a controller leads in an epoch."""
        if epoch > self.epoch:
            self._keep(Began(epoch))

    def serving(self, model: ServedModel) -> None:
        """Record which versions of a repository's model are served."""
        if self.served.get(model.name) != model:
            self._keep(Served(model))

    def estimated(self, state: EstimateState) -> None:
        """Record an estimate."""
        self._keep(Estimated(state))

    def added(self, model: ModelSpec) -> None:
        """Record that a client added a model."""
        self._keep(Added(model))

    def replaced(self, model: ModelSpec) -> None:
        """Record that an added model has other files now; the next start reads a store's model anyway."""
        if self.models.get(model.name) is not None:
            self._keep(Added(model))

    def removed(self, name: str) -> None:
        """Record that a client removed a model."""
        self._keep(Removed(name))

    def operated(self, asked: OperatorAsked) -> None:
        """Record what an operator set; a command that takes effect only once is not recorded."""
        if subject(asked.command) is not None:
            self._keep(asked)

    def moved(self, worker: str, controller: str) -> None:
        """Record which controller a worker was sent to; empty if it is back."""
        if self.places.get(worker, "") != controller:
            self._keep(Moved(worker, controller))

    def learnt(self, graph: str, shares: dict[str, float]) -> None:
        """Record what gateways have learnt of a graph's steps, if it is new."""
        known = self.shares.get(graph, {})
        if any(abs(shares.get(step, 1.0) - known.get(step, 1.0)) > _APART for step in (*shares, *known)):
            self._keep(Learnt(graph, shares))

    def applied(self, models: list[ModelSpec]) -> list[ModelSpec]:
        """Return the models that the start found, with the recorded changes applied."""
        found = [model for model in models if model.name not in self.models]
        return [*found, *(model for model in self.models.values() if model is not None)]

    def _keep(self, change: Change) -> None:
        self._take(change)
        line = _line(change)
        self.on_kept(line)
        if self._path is None:
            return
        try:
            # What could not be written may have left half a line, behind which nothing may come.
            if self._problem or self._lines > 2 * self._in_force() + _UNUSED_LINES:
                self._rewrite(self._path)
            else:
                with self._path.open("ab", buffering=0) as file:
                    if file.write(line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._lines += 1
            self._problem = ""
        except OSError as error:
            if not self._problem:
                _LOGGER.warning("changes will not outlive the controller: %s: %s", self._path, error.strerror)
            self._problem = str(error)

    def _take(self, change: Change) -> None:
        match change:
            case Added(model=model):
                self.models[model.name] = model
            case Removed(name=name):
                self.models[name] = None
                self.asked.pop(("model", name), None)
                self.asked.pop(("assignment", name), None)
            case Moved(worker=worker, controller=controller):
                self.places.pop(worker, None)
                if controller:
                    self.places[worker] = controller
            case Learnt(graph=graph, shares=shares):
                self.shares[graph] = shares
            case Began(epoch=epoch):
                self.epoch = max(self.epoch, epoch)
            case Served(model=served):
                self.served.pop(served.name, None)
                if served.versions:
                    self.served[served.name] = served
            case Estimated(state=state):
                self._estimated(state)
            case OperatorAsked(command=command):
                if isinstance(command, SetGraph):
                    self.shares.pop(command.name, None)
                about = subject(command)
                if about is None:
                    return
                self.asked.pop(about, None)
                unset = command in [kind(about[1]) for kind in _UNSET]
                unset = unset or (isinstance(command, AssignModel) and not command.workers)
                if not unset and not isinstance(command, ResumeWorker | UnpinModel):
                    self.asked[about] = change

    def _estimated(self, state: EstimateState) -> None:
        about = subject_of(state)
        self.estimates.pop(about, None)
        if len(self.estimates) >= MOST_ESTIMATES:
            del self.estimates[next(iter(self.estimates))]
        self.estimates[about] = state

    def _read(self, data: bytes) -> None:
        """Take in a file's content; raise `Damaged`."""
        *whole, torn = data.split(b"\n")
        found: list[Header | Change | str] = [_found(line) for line in whole]
        while found and isinstance(found[-1], str):
            # What the machine had not written when it stopped.
            torn = torn or whole[-1]
            found.pop()
        header, changes = (found[0], found[1:]) if found else (None, [])
        fault = next((each for each in found if isinstance(each, str)), "")
        if not fault and not isinstance(header, Header):
            fault = "it does not begin with a header"
        elif not fault and isinstance(header, Header) and len(changes) < header.changes:
            fault = f"its snapshot has {len(changes)} of {header.changes} lines"
        if fault and data:
            raise Damaged(
                errno.EILSEQ,
                f"{fault}. It holds what clients and operators changed. To go on without, start the "
                "controller with --forget, which keeps the file aside",
                str(self._path),
            )
        if torn:
            _LOGGER.warning("%s: its last line was not written whole, and is passed over", self._path)
        for change in changes:
            if not isinstance(change, Header | str):
                self._take(change)

    def _in_force(self) -> int:
        changes = len(self.models) + len(self.asked) + len(self.places) + len(self.shares)
        return changes + len(self.served) + len(self.estimates)

    def _changes(self) -> list[Change]:
        changes: list[Change] = [Began(self.epoch)] if self.epoch else []
        changes += [Removed(name) if model is None else Added(model) for name, model in self.models.items()]
        changes += map(Served, self.served.values())
        changes += self.asked.values()
        changes += [Moved(worker, controller) for worker, controller in self.places.items()]
        changes += [Learnt(graph, shares) for graph, shares in self.shares.items()]
        changes += map(Estimated, self.estimates.values())
        return changes

    def _rewrite(self, path: Path) -> None:
        changes = self._changes()
        aside = path.with_name(f"{path.name}.new")
        aside.write_bytes(b"".join(map(_line, [Header(VERSION, len(changes)), *changes])))
        os.replace(aside, path)
        self._lines = len(changes)


class Learning:
    """Keeps in a memory what estimates have become, a few in each heartbeat."""

    def __init__(self, memory: Memory, states: Callable[[], Iterator[EstimateState]]) -> None:
        """``states`` yields all estimates, each as it is when it is asked for."""
        self._memory = memory
        self._states = states
        self._round: Iterator[EstimateState] = iter(())

    def beat(self) -> None:
        """Look at the next few."""
        looked_at = list(itertools.islice(self._round, ESTIMATES_A_BEAT))
        if len(looked_at) < ESTIMATES_A_BEAT:
            self._round = self._states()
        for state in looked_at:
            measured = not isinstance(state, InferEstimate) or state.measured
            if measured and not steady(state, self._memory.estimates.get(subject_of(state))):
                self._memory.estimated(state)

    def remembered(self, now_ns: int) -> Remembered | None:
        """Return the event by which a scheduler begins with what is kept; None if that is nothing.

        Instants beyond ``now_ns`` are those of another host's clock, or of one that has started again.
        """
        kept = tuple(_until(now_ns, state) for state in self._memory.estimates.values())
        return Remembered(kept) if kept else None


def _until(now_ns: int, state: EstimateState) -> EstimateState:
    """Return an estimate without instants that are yet to come."""
    replace = msgspec.structs.replace

    def past(duration: DurationState) -> DurationState:
        instants = duration.since_ns, duration.review_ns, duration.aside_ns
        since_ns, review_ns, aside_ns = (min(each, now_ns) for each in instants)
        return replace(duration, since_ns=since_ns, review_ns=review_ns, aside_ns=aside_ns)

    match state:
        case LoadRates(openings=openings):
            return replace(state, openings={kind: past(each) for kind, each in openings.items()})
        case InferEstimate(durations=durations, transfers=transfers, opening=opening):
            return replace(
                state,
                durations=tuple(map(past, durations)),
                transfers={index: past(each) for index, each in transfers.items()},
                opening=None if opening is None else past(opening),
            )
        case LoadEstimate(duration=duration):
            return replace(state, duration=past(duration))


def _line(change: Header | Change) -> bytes:
    data = msgspec.json.encode(change)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _parsed(line: bytes) -> Header | Change:
    """Return what a line says; raise ValueError if it is not as it was written."""
    checksum, _, data = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(data):
        raise ValueError("its checksum is wrong")
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not of this release: {error}") from None


def _found(line: bytes) -> Header | Change | str:
    """Return what a line says, or what is wrong with it."""
    try:
        return _parsed(line)
    except ValueError as error:
        return f"a line is damaged: {error}"
