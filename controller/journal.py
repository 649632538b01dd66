"""What clients and operators changed of what is served, kept for the controller's next start.

A file of one JSON object on each line, appended to as changes are granted and written afresh, without what
later lines undo, when it is opened. It outlives the controller's process, which is what it is for: the run
that it belongs to ends with the machine, so lines are handed to the operating system and not forced to disk.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from mainspring.messages.events import OperatorAsked
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import ResumeWorker, SetDefaultSlo, UnpinModel, subject

_LOGGER = logging.getLogger(__name__)


class Added(msgspec.Struct, frozen=True, tag="added"):
    """A client had a model served."""

    model: ModelSpec


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """A client had a model served no more."""

    name: str


Change = Added | Removed | OperatorAsked
_DECODER = msgspec.json.Decoder(Change)
_UNUSED_LINES = 1000
"""Lines that later ones undid, beyond as many as are in force, before the file is written afresh."""


class Journal:
    """The changes in force. Without a path they are forgotten with the process."""

    def __init__(self, path: str | None = None) -> None:
        """Read the file, if it is there; raise OSError if it can't be read or written."""
        self.models: dict[str, ModelSpec | None] = {}
        """What was added, by name; None for what was removed."""
        self.asked: dict[tuple[str, str], OperatorAsked] = {}
        """What operators set, by what it is about."""
        self._path = None if path is None else Path(path)
        self._lines = 0
        self._problem = ""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._read(self._path.read_bytes())
        self._write_afresh(self._path)

    def added(self, model: ModelSpec) -> None:
        """Keep that a model is served."""
        self._keep(Added(model))

    def replaced(self, model: ModelSpec) -> None:
        """Keep that a model has other files now, if it was added; a store's is read from there again."""
        if self.models.get(model.name) is not None:
            self._keep(Added(model))

    def removed(self, name: str) -> None:
        """Keep that a model is served no more."""
        self._keep(Removed(name))

    def operated(self, asked: OperatorAsked) -> None:
        """Keep what an operator set; what only has an effect once is not kept."""
        if subject(asked.wish) is not None:
            self._keep(asked)

    def applied(self, models: list[ModelSpec]) -> list[ModelSpec]:
        """Return the models that are to be served in place of those that the start found."""
        found = [model for model in models if model.name not in self.models]
        return [*found, *(model for model in self.models.values() if model is not None)]

    def _keep(self, change: Change) -> None:
        self._take(change)
        if self._path is None:
            return
        try:
            if self._lines > 2 * (len(self.models) + len(self.asked)) + _UNUSED_LINES:
                self._write_afresh(self._path)
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
            case OperatorAsked(wish=wish):
                about = subject(wish)
                if about is None:
                    return
                self.asked.pop(about, None)
                unset = isinstance(wish, SetDefaultSlo) and wish.slo_ns is None
                if not unset and not isinstance(wish, ResumeWorker | UnpinModel):
                    self.asked[about] = change

    def _read(self, data: bytes) -> None:
        for number, line in enumerate(data.splitlines(), 1):
            try:
                self._take(_DECODER.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                # As the last line may be, if the process died or the disk was full while it was written.
                _LOGGER.warning("%s: line %d is left out: %s", self._path, number, error)

    def _write_afresh(self, path: Path) -> None:
        changes: list[Change] = [
            Removed(name) if model is None else Added(model) for name, model in self.models.items()
        ]
        changes += self.asked.values()
        aside = path.with_name(f"{path.name}.new")
        aside.write_bytes(b"".join(map(_line, changes)))
        os.replace(aside, path)
        self._lines = len(changes)


def _line(change: Change) -> bytes:
    return msgspec.json.encode(change) + b"\n"
