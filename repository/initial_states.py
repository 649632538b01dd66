"""Initial states of sequences, in the folder ``initial_state`` of a model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from mainspring.messages.sequences import MOST_INITIAL_BYTES
from mainspring.repository.digests import Stamp, stamp_of_file
from mainspring.repository.labels import Settles
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault

FOLDER = "initial_state"


class _File(NamedTuple):
    stamp: Stamp
    content: bytes


class InitialStates:
    """Reads the files of a repository's models, each once for every state that it has."""

    def __init__(self, settles: Settles) -> None:
        self._settles = settles
        self._files: dict[str, _File] = {}

    def into(self, config: ModelConfig, folder: str, now_ns: int) -> ModelConfig | None:
        """Return a configuration with its initial states, None while a file of theirs is being written.

        ``folder`` is the model's. Raises `ConfigFault` for a file that can't be used.
        """
        if config.sequencing is None or not config.initial_files:
            return config
        states = []
        for state in config.sequencing.states:
            name = config.initial_files.get(state.input)
            if name is None:
                states.append(state)
                continue
            content = self._content(f"{folder}/{FOLDER}/{name}", f"data_file {name!r}", now_ns)
            if content is None:
                return None
            states.append(msgspec.structs.replace(state, initial=content))
        sequencing = msgspec.structs.replace(config.sequencing, states=tuple(states))
        return msgspec.structs.replace(config, sequencing=sequencing)

    def forget(self, folder: str) -> None:
        """Forget the files of a model that is gone."""
        for path in [path for path in self._files if path.startswith(f"{folder}/")]:
            del self._files[path]

    def _content(self, path: str, what: str, now_ns: int) -> bytes | None:
        try:
            stamp = stamp_of_file(path)
            if not stamp:
                raise ConfigFault(f"{what} is not in the model's folder {FOLDER}")
            known = self._files.get(path)
            if known is not None and known.stamp == stamp:
                return known.content
            if self._settles(path, stamp, now_ns):
                return None
            ((_, size, *_),) = stamp
            if not 0 < size <= MOST_INITIAL_BYTES:
                raise ConfigFault(f"{what} has {size:,} bytes; it has from 1 to {MOST_INITIAL_BYTES:,}")
            self._files[path] = _File(stamp, Path(path).read_bytes())
        except OSError as error:
            raise ConfigFault(f"{what} can't be read: {error.strerror}") from None
        return self._files[path].content
