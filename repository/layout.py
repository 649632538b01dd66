"""The content of the repository's folder: models, versions, and digests of what they are made of.

Reads the folder only. A file that is being written is left alone until it has not changed for a while; a
digest is made once for each state of a version's files and remembered across restarts. Where nothing changed,
a look costs a few system calls and returns the object that the last look returned.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from mainspring.compiler.artifact.python_folder import CODE, DESCRIPTION
from mainspring.repository.model_config import MODEL_FILE, ModelConfig, read_config
from mainspring.repository.named_files import (
    LabelFiles,
    NamedFiles,
    Stamp,
    digest_of,
    stamp_of,
    stamp_of_file,
)
from mainspring.repository.reading import ConfigFault
from mainspring.repository.sent_files import Given

CONFIG_FILE = "config.pbtxt"
MAX_NAME_CHARACTERS = 96
"""Longest name of a model, in characters, so that its artifacts' names fit where names go."""
MAX_CONFIG_BYTES = 1 << 20
MAX_FAULT_CHARACTERS = 1_000
"""Longest text about a configuration that quotes itself, in characters."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_NAMED = 3
"""Most names of files that are not models in one sentence."""
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_DEFAULTS = ModelConfig()

NAMES = (
    f"use at most {MAX_NAME_CHARACTERS} letters, digits, '.', '_' and '-', beginning with a letter or a digit"
)
"""Rule for a model's name, as a hint for a person."""


def is_model_name(name: str) -> bool:
    """Say whether a model may have this name."""
    return len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name) is not None


Failed = Callable[[ModelConfig, int, str], bool]
"""A function that says whether a version's content (a digest) is known to fail with a configuration."""


class RepositoryFault(Exception):
    """The repository's folder can't be read; the text says why."""


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model's folder at one look."""

    name: str
    folder: str = ""
    """Folder of its versions, if there are any."""
    config: ModelConfig = ModelConfig()
    given: bool = False
    """True if there is a ``config.pbtxt``."""
    fault: str = ""
    """Reason why no version of it can be served; empty if that is not so."""
    labels: dict[str, tuple[str, ...]] = {}
    """Names of classes by index, of outputs with a ``label_filename``."""
    warnings: tuple[str, ...] = ()
    """Sentences about files of labels that can't be used."""
    digests: dict[int, str] = {}
    """Digest of the files of each version that is to be served, or would be if it could."""
    chosen: tuple[int, ...] = ()
    """Versions of these that are to be served: the others are known to be broken."""
    numbers: tuple[int, ...] = ()
    """All versions whose folders hold a model."""
    settling: tuple[int, ...] = ()
    """Versions whose files were changed a moment ago; the model is looked at again."""

    @property
    def only_listed(self) -> bool:
        """Return whether the folder is known by its name alone, as that of a model that is not loaded."""
        return not (self.numbers or self.fault or self.settling)


class Remembered(msgspec.Struct, frozen=True):
    """The digest of files that had this stamp."""

    stamp: Stamp
    digest: str


class _Config(NamedTuple):
    """The result of reading a ``config.pbtxt`` that had this stamp: a configuration or a fault."""

    stamp: Stamp
    config: ModelConfig | None
    fault: str


class Layout:
    """Looks at one repository again and again; used by one thread at a time."""

    def __init__(self, root: Path, settle_ns: int, memory: dict[str, Remembered] | None = None) -> None:
        self.root = root
        self.memory = memory or {}
        """Digests by the version's folder, to be read after a look and kept across restarts."""
        self.changes = 0
        """Number of times that an entry of the memory was added or replaced."""
        self.overrides: dict[str, Given] = {}
        """Configurations and folders that count in the place of the files, by model."""
        self._settle_ns = settle_ns
        self._seen: dict[str, tuple[Stamp, int]] = {}
        """Instant at which a file or a version was first seen with its stamp, while that matters."""
        self._configs: dict[str, _Config] = {}
        self._found: dict[str, FoundModel] = {}
        self._labels = LabelFiles(self._settles)
        self._named = NamedFiles(self._settles)

    def names(self) -> list[str]:
        """Return the models that have a folder, sorted; raise `RepositoryFault` if it can't be read."""
        try:
            with os.scandir(self.root) as entries:
                there = {each.name for each in entries if each.name[0] != "." and each.is_dir()}
        except OSError as error:
            raise RepositoryFault(
                f"the model repository {self.root} can't be read: {error.strerror}"
            ) from None
        there.update(name for name, given in self.overrides.items() if given.folder)
        for name in self._found.keys() - there:
            self._forget(name)
        return sorted(there)

    def holds(self, name: str) -> bool:
        """Say whether the repository itself has a folder for a model."""
        return is_model_name(name) and _versions_in(f"{self.root}/{name}") is not None

    def look(self, name: str, now_ns: int, failed: Failed) -> FoundModel | None:
        """Return what the folder ``name`` holds; None if it is gone. ``now_ns`` is on the files' clock.

        The object is the same one for as long as nothing changes.
        """
        found = self._look(name, now_ns, failed)
        if found is None:
            self._forget(name)
            return None
        before = self._found.get(name)
        if before == found:
            return before
        self._found[name] = found
        if before is not None:
            stay = found.numbers if found.folder == before.folder else ()
            self._forget_versions(before, {*before.numbers}.difference(stay))
        return found

    def _look(self, name: str, now_ns: int, failed: Failed) -> FoundModel | None:
        if not is_model_name(name):
            return FoundModel(name=name, fault=f"{name[:200]!r} can't be the name of a model: {NAMES}")
        folder = self._folder(name)
        try:
            versions = _versions_in(folder)
            if versions is None:
                return None
            config, given = self._config(folder, name, now_ns)
            config = None if config is None else self._named.into(config, folder, now_ns)
            if config is None:
                return FoundModel(name=name, given=True, settling=(0,))
            labels = self._labels.of(folder, config.outputs, now_ns)
            if labels is None:
                return FoundModel(name=name, given=True, settling=(0,))
            found = self._versions(name, config, given, versions, now_ns, failed)
            return msgspec.structs.replace(found, labels=labels.by_output, warnings=labels.warnings)
        except ConfigFault as error:
            return FoundModel(name=name, given=True, fault=f"{CONFIG_FILE}, {error}")
        except OSError as error:
            return FoundModel(name=name, fault=f"{error.filename or folder} can't be read: {error.strerror}")

    def _folder(self, name: str) -> str:
        given = self.overrides.get(name)
        return given.folder if given is not None and given.folder else f"{self.root}/{name}"

    def _config(self, folder: str, name: str, now_ns: int) -> tuple[ModelConfig | None, bool]:
        """Return the configuration, None while its file is being written; and whether there is a file."""
        override = self.overrides.get(name)
        if override is not None and override.config is not None:
            return override.config, True
        path = f"{folder}/{CONFIG_FILE}"
        stamp = stamp_of_file(path)
        if not stamp:
            self._configs.pop(path, None)
            return _DEFAULTS, False
        known = self._configs.get(path)
        if known is None or known.stamp != stamp:
            if self._settles(path, stamp, now_ns):
                return None, True
            known = self._configs[path] = _read(path, name, stamp)
        if known.fault:
            raise ConfigFault(known.fault)
        return known.config, True

    def _versions(
        self,
        name: str,
        config: ModelConfig,
        given: bool,
        versions: list[int],
        now_ns: int,
        failed: Failed,
    ) -> FoundModel:
        folder = self._folder(name)
        if config.graph is not None:
            return FoundModel(name=name, folder=folder, config=config, given=given, numbers=(1,))
        numbers = [each for each in versions if model_file(f"{folder}/{each}", config.file_name)]
        digests: dict[int, str] = {}
        settling: list[int] = []
        broken: set[int] = set()
        while True:
            chosen = config.version_policy.choose([each for each in numbers if each not in broken])
            for number in chosen:
                if number not in digests and number not in settling:
                    digest = self._digest(f"{folder}/{number}", now_ns)
                    if digest is None:
                        settling.append(number)
                    else:
                        digests[number] = digest
            worse = {each for each in chosen if each in digests and failed(config, each, digests[each])}
            if not worse:
                break
            broken |= worse
        return FoundModel(
            name=name,
            folder=folder,
            config=config,
            given=given,
            fault="" if chosen or broken else _nothing(folder, name, config, numbers, versions),
            digests=digests,
            chosen=tuple(each for each in chosen if each in digests),
            numbers=tuple(numbers),
            settling=tuple(settling),
        )

    def _digest(self, folder: str, now_ns: int) -> str | None:
        """Return the digest of a version's files; None while they are being written."""
        stamp = stamp_of(folder)
        known = self.memory.get(folder)
        if known is not None and known.stamp == stamp:
            return known.digest
        if self._settles(folder, stamp, now_ns):
            return None
        digest = digest_of(folder, stamp)
        if stamp_of(folder) != stamp:
            return None
        self.memory[folder] = Remembered(stamp, digest)
        self.changes += 1
        self._seen.pop(folder, None)
        return digest

    def _settles(self, key: str, stamp: Stamp, now_ns: int) -> bool:
        """Say whether files changed too lately, by their times and by what was seen, to be whole."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != stamp:
            seen = self._seen[key] = (stamp, now_ns)
        newest_ns = max((each[2] for each in stamp), default=0)
        return now_ns - newest_ns < self._settle_ns and now_ns - seen[1] < self._settle_ns

    def _forget(self, name: str) -> None:
        """Forget a model that is gone."""
        found = self._found.pop(name, None)
        folder = found.folder if found is not None and found.folder else f"{self.root}/{name}"
        path = f"{folder}/{CONFIG_FILE}"
        self._configs.pop(path, None)
        self._seen.pop(path, None)
        self._labels.forget(folder)
        self._named.forget(folder)
        if found is not None:
            self._forget_versions(found, found.numbers)

    def _forget_versions(self, found: FoundModel, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._seen.pop(f"{found.folder}/{number}", None)
            if self.memory.pop(f"{found.folder}/{number}", None) is not None:
                self.changes += 1


def model_file(folder: str, file_name: str) -> str:
    """Return the path of the ONNX file in a version's folder; empty if there is none.

    Triton has models with external data also in a folder of the file's name, where they are `MODEL_FILE`. Of
    a Python model it is the file that says what its tensors are.
    """
    path = f"{folder}/{file_name}"
    paths = (path, f"{path}/{MODEL_FILE}", f"{folder}/{DESCRIPTION}")
    return next((each for each in paths if os.path.isfile(each)), "")


def _versions_in(folder: str) -> list[int] | None:
    """Return the numbers of a model's folders of versions, sorted; None if there is no such model."""
    try:
        with os.scandir(folder) as entries:
            return sorted(int(each.name) for each in entries if _VERSION.fullmatch(each.name))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _other_files(folder: str) -> list[str]:
    """Return the names of some files or folders in a version's folder; raise OSError."""
    with os.scandir(folder) as entries:
        found = sorted(each.name for each in entries if not each.name.startswith("."))
    return [name[:80] for name in found[:_MOST_NAMED]]


def _read(path: str, model: str, stamp: Stamp) -> _Config:
    """Read a ``config.pbtxt``; raise OSError."""
    try:
        ((_, size, *_),) = stamp
        if size > MAX_CONFIG_BYTES:
            raise ConfigFault(
                f"line 1: the file has {size:,} bytes; more than {MAX_CONFIG_BYTES:,} make no sense"
            )
        return _Config(stamp, read_config(Path(path).read_text(encoding="utf-8"), model), "")
    except UnicodeDecodeError as error:
        return _Config(stamp, None, f"line 1: the file is not UTF-8 ({error.reason} at byte {error.start})")
    except ConfigFault as error:
        return _Config(stamp, None, str(error)[:MAX_FAULT_CHARACTERS])


def _nothing(folder: str, name: str, config: ModelConfig, numbers: list[int], versions: list[int]) -> str:
    """Say why a model has no version to be served; ``numbers`` are the ``versions`` that have its file."""
    if numbers:
        return (
            f"none of its versions ({', '.join(map(str, numbers[-8:]))}) is one that version_policy names; "
            "add it, or name others"
        )
    for version in reversed(versions):
        others = _other_files(f"{folder}/{version}")
        if CODE in others:
            return (
                f"{name}/{version} holds {CODE} and no {DESCRIPTION}, which says what a Python model's "
                "tensors are: see docs/python-models.md, also for what changes in a TritonPythonModel"
            )
        if others:
            return (
                f"{name}/{version} holds {', '.join(others)} and no {config.file_name}; only ONNX models are "
                f"served: put its file at {name}/{version}/{config.file_name}, exported as ONNX, "
                "or name another with default_model_filename"
            )
    return (
        f"there is no version: put its file at {name}/1/{config.file_name}; a version's folder is "
        "a number from 1 up"
    )
