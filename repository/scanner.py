"""Scans the repository's folder: periodically in mode poll, on request in mode explicit.

Files are read and hashed in a thread, so that the event loop never waits for a disk. Digests are remembered
in the store, so that a restart need not read every model's weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from mainspring.repository.config import RepositoryConfig
from mainspring.repository.layout import FoundModel, Layout, Remembered, RepositoryFault
from mainspring.repository.reconciler import Reconciler
from mainspring.repository.sent_files import Given, SentFiles
from mainspring.repository.served_files import replace_file

_LOGGER = logging.getLogger("mainspring.repository")
MEMORY_FILE = "repository-digests.json"
GIVEN_FILE = "given.json"
"""File in the cluster's folder: configurations and files of clients' own with which they loaded models."""
SETTLING_POLL_S = 0.1
"""Time between two looks while files are being changed, in seconds."""


class Scanner:
    """Keeps the reconciler's knowledge of the folder up to date."""

    def __init__(self, config: RepositoryConfig, reconciler: Reconciler, changed: Callable[[], None]) -> None:
        """``changed`` is called after a look that found anything new."""
        self.fault = ""
        """Reason why the folder can't be read; empty if it can."""
        self._config = config
        self._reconciler = reconciler
        self._memory_path = Path(config.store) / MEMORY_FILE
        self._layout = Layout(
            Path(config.path), round(config.settle_ms * 1e6), _read_memory(self._memory_path)
        )
        self._given_path = Path(config.state_dir) / GIVEN_FILE if config.state_dir else None
        self._layout.overrides.update(_read_given(self._given_path))
        self.sent = SentFiles(config.state_dir, config.max_sent_files_bytes)
        """Files that clients send."""
        self.sent.drop_but(given.folder for given in self._layout.overrides.values())
        self._changed = changed
        self._away: dict[str, float] = {}
        """Models whose folders are not there, each with since when."""
        self._kept = 0
        """The memory's changes that are in its file."""
        self._one_at_a_time = asyncio.Lock()
        self._warned: dict[str, tuple[str, ...]] = {}

    async def look_around(self) -> bool:
        """Look at every model, in mode explicit only which there are; return whether to look again soon."""
        try:
            async with self._one_at_a_time:
                names = await asyncio.to_thread(self._layout.names)
        except RepositoryFault as error:
            self._see_fault(str(error))
            return True
        self._see_fault("")
        there = {*names, *self._blinking(names)}
        if self._config.mode == "explicit":
            self._list(there)
            names = [name for name in names if self._is_new(name)]
        await self._look(names)
        news = not self._reconciler.looked
        if self._config.mode != "explicit":
            news = self._reconciler.missing(there) or news
        self._reconciler.looked = True
        if news:
            self._changed()
        records = self._reconciler.records.values()
        return any(each.settling or (each.loaded and each.found.only_listed) for each in records)

    def override(self, name: str, given: Given | None) -> Given | None:
        """Have what a client gave count in the place of a model's folder, None for that; return the former.

        It counts from the next look on, and after a restart of this process.
        """
        former = self._layout.overrides.pop(name, None)
        if given is not None:
            self._layout.overrides[name] = given
        if given != former:
            self._keep_given()
        return former

    def given(self, name: str) -> Given | None:
        """Return what counts in the place of a model's folder, if anything does."""
        return self._layout.overrides.get(name)

    def holds(self, name: str) -> bool:
        """Say whether the repository itself has a folder for a model; raise OSError."""
        return self._layout.holds(name)

    def _keep_given(self) -> None:
        """Keep what clients gave; without the file a restart goes by models' folders."""
        if self._given_path is None:
            return
        try:
            replace_file(self._given_path, self._layout.overrides)
        except OSError as error:
            _LOGGER.warning("can't keep configurations in %s: %s", self._given_path, error.strerror)

    async def look(self, name: str, patience_s: float = 0.0, *, asked: bool = True) -> FoundModel | None:
        """Look at one model; return what was found, None if it is gone.

        With patience again and again, while its files are being changed. ``asked``: a client asked for it, so
        that a folder that is not there is gone without a grace.
        """
        give_up_s = time.monotonic() + patience_s
        while True:
            (found,) = await self._look([name], asked=asked)
            if found is None or not found.settling or time.monotonic() >= give_up_s:
                return found
            await asyncio.sleep(SETTLING_POLL_S)

    def _blinking(self, names: Iterable[str]) -> list[str]:
        """Return the models whose folders have vanished a moment ago, and may be back in another one."""
        now_s, there = time.monotonic(), set(names)
        away = [name for name, record in self._reconciler.records.items() if name not in there]
        since = {name: self._away.get(name, now_s) for name in away}
        for name in [
            name for name in since if name not in self._away and not self._reconciler.records[name].gone
        ]:
            _LOGGER.warning("the folder of model %s has vanished; what is served stays so for a while", name)
        self._away = since
        grace_s = self._config.vanish_grace_ms / 1e3
        return [
            name
            for name, since_s in since.items()
            if now_s - since_s < grace_s and not self._reconciler.records[name].gone
        ]

    async def _look(self, names: Iterable[str], *, asked: bool = False) -> list[FoundModel | None]:
        async with self._one_at_a_time:
            looked = await asyncio.to_thread(self._look_in_thread, list(names))
            # One that has vanished is gone at once only for who asks for it by name.
            known = {name: found for name, found in looked.items() if asked or found is not None}
            news = [name for name, found in known.items() if self._reconciler.found(name, found)]
            for name in news:
                self._warn(name, looked[name])
        if news:
            self._changed()
        return list(looked.values())

    def _look_in_thread(self, names: list[str]) -> dict[str, FoundModel | None]:
        looked = {
            name: self._layout.look(name, time.time_ns(), partial(self._reconciler.has_failed, name))
            for name in names
        }
        if self._layout.changes != self._kept:
            self._kept = self._layout.changes
            _write_memory(self._memory_path, self._layout.memory)
        return looked

    def _see_fault(self, fault: str) -> None:
        if fault == self.fault:
            return
        self.fault = fault
        if fault:
            _LOGGER.warning("%s; what is served stays so", fault)
        self._changed()

    def _list(self, names: set[str]) -> None:
        """Enter models that are not loaded by their names alone."""
        records = self._reconciler.records
        for name in sorted(names):
            if name not in records:
                self._reconciler.found(name, FoundModel(name=name))
        for name in set(records).difference(names):
            if not records[name].loaded:
                records[name].gone = True

    def _is_new(self, name: str) -> bool:
        """Return whether a model is to be loaded from the start, and has not been looked at."""
        record = self._reconciler.records[name]
        return record.loaded and (record.settling or record.found.only_listed)

    def _warn(self, name: str, found: FoundModel | None) -> None:
        warnings = () if found is None else (*found.config.warnings, *found.warnings)
        if warnings and warnings != self._warned.get(name):
            for warning in warnings:
                _LOGGER.warning("%s/config.pbtxt, %s", name, warning)
        self._warned[name] = warnings


def _read_given(path: Path | None) -> dict[str, Given]:
    """Return what clients gave before this process was restarted."""
    try:
        return {} if path is None else msgspec.json.decode(path.read_bytes(), type=dict[str, Given])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOGGER.warning("%s is left out, and models go by their folders' files: %s", path, error)
        return {}


def _read_memory(path: Path) -> dict[str, Remembered]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Remembered])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _write_memory(path: Path, memory: dict[str, Remembered]) -> None:
    """Keep the digests; without them the next start is slower, and nothing else."""
    try:
        replace_file(path, memory)
    except OSError as error:
        _LOGGER.warning("can't keep digests in %s: %s", path, error.strerror)
