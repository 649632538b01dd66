"""The files of a cluster for a restarted controller, and for commands that wait for the repository.

``served/MODEL.json`` holds a model's versions and their specifications. It is written before gateways
get a change, so that a restarted controller knows all that any gateway does. ``state.json``
says how far the repository is. Files are written aside and renamed into place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.messages.served import ServedModel

_LOGGER = logging.getLogger("mainspring.repository")
STATE = "state.json"


class ServedFile(msgspec.Struct, frozen=True):
    """A model that gateways are directed to."""

    model: ServedModel
    specs: tuple[ModelSpec, ...]


class State(msgspec.Struct, frozen=True):
    """The progress of the repository."""

    settled: bool = False
    """True if all that should be served is, or can't be."""
    models: int = 0
    """Models with a version that is served."""
    waits_for: str = ""
    """Description of what is not settled, for a person."""
    problems: tuple[str, ...] = ()
    """Sentences about what is wrong in the repository."""


class ServedFiles:
    """The folder; opening it touches nothing."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._served = self._folder / "served"
        self._state: State | None = None

    def clear(self) -> None:
        """Forget a former cluster's; raise OSError."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def write(self, model: ServedModel, specs: Sequence[ModelSpec]) -> None:
        """Keep what gateways are about to be told; raise OSError."""
        replace_file(self._served / f"{model.name}.json", ServedFile(model, tuple(specs)))

    def remove(self, name: str) -> None:
        """Forget a model that no gateway is directed to any more; raise OSError."""
        (self._served / f"{name}.json").unlink(missing_ok=True)

    def read(self) -> tuple[list[ModelSpec], list[ServedModel]]:
        """Return what a controller is to know; files that make no sense are left out, with a warning."""
        specs: dict[str, ModelSpec] = {}
        served = []
        for path in sorted(self._served.glob("*.json")):
            try:
                file = msgspec.json.decode(path.read_bytes(), type=ServedFile)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                _LOGGER.warning("%s is left out: %s", path, error)
                continue
            if not set(file.model.versions.values()) <= {spec.name for spec in file.specs}:
                _LOGGER.warning("%s is left out: it lacks a specification", path)
                continue
            specs.update({spec.name: spec for spec in file.specs})
            served.append(file.model)
        return list(specs.values()), served

    def write_state(self, state: State) -> None:
        """Say how far the repository is, if that changed; raise OSError."""
        if state != self._state:
            replace_file(self._folder / STATE, state)
            self._state = state

    def begun(self) -> bool:
        """Return whether a repository of this cluster has run before."""
        return (self._folder / STATE).exists()

    def state(self) -> State:
        """Return how far the repository is; the beginning if it has not said."""
        try:
            return msgspec.json.decode((self._folder / STATE).read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return State()


def replace_file(path: Path, content: object) -> None:
    """Write the content as JSON, aside at first, so that readers find the file whole; raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.writing")
    aside.write_bytes(msgspec.json.encode(content))
    os.replace(aside, path)
