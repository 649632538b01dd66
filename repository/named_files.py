"""Files that a configuration names: initial states of sequences, and rows that the model takes.

They are in the folders ``initial_state`` and ``warmup`` of a model, beside its versions. What they hold is
part of the configuration, so a changed file makes another artifact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from mainspring.messages.sequences import MOST_INITIAL_BYTES
from mainspring.repository import warmup
from mainspring.repository.digests import Stamp, stamp_of_file
from mainspring.repository.labels import Settles
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault

INITIAL = "initial_state"
"""The folder of initial states."""


class _File(NamedTuple):
    stamp: Stamp
    kept: bytes
    """Its content or its digest."""


class _Settling(Exception):
    """A file is being written."""


class NamedFiles:
    """Reads the files of a repository's models, each once for every state that it has."""

    def __init__(self, settles: Settles) -> None:
        self._settles = settles
        self._files: dict[str, _File] = {}

    def into(self, config: ModelConfig, folder: str, now_ns: int) -> ModelConfig | None:
        """Return a configuration with what its files hold, None while one of them is being written.

        ``folder`` is the model's. Raises `ConfigFault` for a file that can't be used.
        """
        try:
            states, rows = self._states(config, folder, now_ns), self._rows(config, folder, now_ns)
        except _Settling:
            return None
        return msgspec.structs.replace(states, warmup=rows) if rows != config.warmup else states

    def forget(self, folder: str) -> None:
        """Forget the files of a model that is gone."""
        for path in [path for path in self._files if path.startswith(f"{folder}/")]:
            del self._files[path]

    def _states(self, config: ModelConfig, folder: str, now_ns: int) -> ModelConfig:
        if config.sequencing is None or not config.initial_files:
            return config
        states = []
        for state in config.sequencing.states:
            name = config.initial_files.get(state.input)
            if name is None:
                states.append(state)
                continue
            path, what = f"{folder}/{INITIAL}/{name}", f"data_file {name!r}"
            content = self._kept(path, what, MOST_INITIAL_BYTES, bytes, now_ns)
            states.append(msgspec.structs.replace(state, initial=content))
        sequencing = msgspec.structs.replace(config.sequencing, states=tuple(states))
        return msgspec.structs.replace(config, sequencing=sequencing)

    def _rows(self, config: ModelConfig, folder: str, now_ns: int) -> tuple[warmup.WarmupInput, ...]:
        found = []
        for row in config.warmup:
            if not row.file:
                found.append(row)
                continue
            path, what = f"{folder}/{warmup.FOLDER}/{row.file}", f"input_data_file {row.file!r}"
            digest = self._kept(path, what, warmup.MOST_BYTES, _digest, now_ns)
            found.append(msgspec.structs.replace(row, sha256=digest.hex()))
        return tuple(found)

    def _kept(self, path: str, what: str, most: int, kept: Callable[[bytes], bytes], now_ns: int) -> bytes:
        """Return what is ``kept`` of a file's content, of at most so many bytes."""
        try:
            stamp = stamp_of_file(path)
            if not stamp:
                raise ConfigFault(f"{what} is not in the model's folder {Path(path).parent.name}")
            known = self._files.get(path)
            if known is not None and known.stamp == stamp:
                return known.kept
            if self._settles(path, stamp, now_ns):
                raise _Settling
            ((_, size, *_),) = stamp
            if not 0 < size <= most:
                raise ConfigFault(f"{what} has {size:,} bytes; it has from 1 to {most:,}")
            self._files[path] = _File(stamp, kept(Path(path).read_bytes()))
        except OSError as error:
            raise ConfigFault(f"{what} can't be read: {error.strerror}") from None
        return self._files[path].kept


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
