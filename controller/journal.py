"""Changes that clients and operators made to what is served, kept for the controller's next start.

The journal is a file with one JSON object on each line. Granted changes are appended; when the file is
opened, it is rewritten without the lines that later ones undo. It has to outlive the controller's process,
but not the machine, with which the run ends; so lines are handed to the operating system and not forced to
disk.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from mainspring.messages.events import OperatorAsked
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


Change = Added | Removed | OperatorAsked | Moved | Learnt
_DECODER = msgspec.json.Decoder(Change)
_APART = 0.1
"""Difference from the share that is kept from which on another one is kept instead."""
_UNUSED_LINES = 1000
"""The file is rewritten once it has this many lines more than twice the changes in force."""
_UNSET = (SetDefaultSlo, SetGoodputWeight, SetMaxQueue)
"""Commands that set nothing any more if only the model is named. A graph that was removed stays so, whatever
the configuration says."""


class Journal:
    """The changes in force. Without a path they end with the process."""

    def __init__(self, path: str | None = None) -> None:
        """Read the file, if it exists; raise OSError if it can't be read or written."""
        self.models: dict[str, ModelSpec | None] = {}
        """Added models by name; None for a removed one."""
        self.asked: dict[tuple[str, str], OperatorAsked] = {}
        """Operators' settings, by subject (`messages.operating.subject`)."""
        self.places: dict[str, str] = {}
        """The controllers that workers were sent to, by worker."""
        self.shares: dict[str, dict[str, float]] = {}
        """Shares that were learnt of each graph's steps, by the step's name."""
        self._path = None if path is None else Path(path)
        self._lines = 0
        self._problem = ""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._read(self._path.read_bytes())
        self._rewrite(self._path)

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
        if self._path is None:
            return
        try:
            in_force = len(self.models) + len(self.asked) + len(self.places) + len(self.shares)
            if self._lines > 2 * in_force + _UNUSED_LINES:
                self._rewrite(self._path)
            else:
                with self._path.open("ab", buffering=0) as file:
                    file.write(_line(change))
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

    def _read(self, data: bytes) -> None:
        for number, line in enumerate(data.splitlines(), 1):
            try:
                self._take(_DECODER.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                # The last line may be incomplete, if the process died or the disk was full while it was
                # written.
                _LOGGER.warning("%s: line %d is left out: %s", self._path, number, error)

    def _rewrite(self, path: Path) -> None:
        changes: list[Change] = [
            Removed(name) if model is None else Added(model) for name, model in self.models.items()
        ]
        changes += self.asked.values()
        changes += [Moved(worker, controller) for worker, controller in self.places.items()]
        changes += [Learnt(graph, shares) for graph, shares in self.shares.items()]
        aside = path.with_name(f"{path.name}.new")
        aside.write_bytes(b"".join(map(_line, changes)))
        os.replace(aside, path)
        self._lines = len(changes)


def _line(change: Change) -> bytes:
    return msgspec.json.encode(change) + b"\n"
