"""What is in the repository's folder: models, versions, and digests of what they are made of.

Reads the folder only. A file that is being written is left alone until it has not changed for a while; a
digest is made once for each state of a version's files and remembered across restarts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from mainspring.repository.digests import Stamp, digest_of, files_of, stamp_of
from mainspring.repository.model_config import ModelConfig, read_config
from mainspring.repository.reading import ConfigFault

CONFIG_FILE = "config.pbtxt"
MAX_NAME_CHARACTERS = 96
"""Of a model's name, so that its artifacts' names fit where names go."""
MAX_CONFIG_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")

Failed = Callable[[ModelConfig, int, str], bool]
"""Whether this content (a digest) of a version is known not to be servable with this configuration."""


class RepositoryFault(Exception):
    """The repository's folder can't be read; the text says why."""


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model's folder at one look."""

    name: str
    config: ModelConfig = ModelConfig()
    given: bool = False
    """Whether there is a ``config.pbtxt``."""
    fault: str = ""
    """Why no version of it can be served; empty if that is not so."""
    digests: dict[int, str] = {}
    """Of the files of each version that is to be served, or would be if it could."""
    chosen: tuple[int, ...] = ()
    """Of these, the versions to be served: the others are known to be broken."""
    numbers: tuple[int, ...] = ()
    """All versions whose folders hold a model."""
    settling: tuple[int, ...] = ()
    """Versions whose files were changed a moment ago; the model is looked at again."""


class Remembered(msgspec.Struct, frozen=True):
    """The digest of files that had this stamp."""

    stamp: Stamp
    digest: str


class Layout:
    """Looks at one repository again and again; used by one thread at a time."""

    def __init__(self, root: Path, settle_ns: int, memory: dict[str, Remembered] | None = None) -> None:
        self.root = root
        self.memory = memory or {}
        """Digests by the version's folder; whoever keeps it across restarts may read it after a look."""
        self._settle_ns = settle_ns
        self._seen: dict[str, tuple[Stamp, int]] = {}

    def names(self) -> list[str]:
        """Return the folders of models, sorted; raise `RepositoryFault` if they can't be read."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(each.name for each in entries if each.name[0] != "." and each.is_dir())
        except OSError as error:
            raise RepositoryFault(
                f"the model repository {self.root} can't be read: {error.strerror}"
            ) from None

    def look(self, name: str, now_ns: int, failed: Failed) -> FoundModel | None:
        """Return what the folder ``name`` holds; None if it is gone. ``now_ns`` is on the files' clock."""
        folder = self.root / name
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
            return FoundModel(
                name=name,
                fault=f"{name[:200]!r} can't be the name of a model: use at most {MAX_NAME_CHARACTERS} "
                "letters, digits, '.', '_' and '-', beginning with a letter or a digit",
            )
        try:
            if not folder.is_dir():
                return None
            config, given = self._config(folder, now_ns)
            if config is None:
                return FoundModel(name=name, given=True, settling=(0,))
            return self._versions(folder, config, given, now_ns, failed)
        except ConfigFault as error:
            return FoundModel(name=name, given=True, fault=f"{CONFIG_FILE}, {error}")
        except OSError as error:
            return FoundModel(name=name, fault=f"{error.filename or folder} can't be read: {error.strerror}")

    def _config(self, folder: Path, now_ns: int) -> tuple[ModelConfig | None, bool]:
        """Return the configuration, None while its file is being written; and whether there is a file."""
        path = folder / CONFIG_FILE
        stamp = stamp_of(folder, [path]) if path.is_file() else ()
        if not stamp:
            return ModelConfig(), False
        if self._settles(str(path), stamp, now_ns):
            return None, True
        if stamp[0][1] > MAX_CONFIG_BYTES:
            raise ConfigFault(
                f"line 1: the file has {stamp[0][1]:,} bytes; more than {MAX_CONFIG_BYTES:,} make no sense"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigFault(
                f"line 1: the file is no UTF-8 ({error.reason} at byte {error.start})"
            ) from None
        return read_config(text, folder.name), True

    def _versions(
        self, folder: Path, config: ModelConfig, given: bool, now_ns: int, failed: Failed
    ) -> FoundModel:
        numbers = self._numbers(folder, config.file_name)
        digests: dict[int, str] = {}
        settling: list[int] = []
        broken: set[int] = set()
        while True:
            chosen = config.version_policy.choose([each for each in numbers if each not in broken])
            for number in chosen:
                if number not in digests and number not in settling:
                    digest = self._digest(folder / str(number), now_ns)
                    if digest is None:
                        settling.append(number)
                    else:
                        digests[number] = digest
            worse = {each for each in chosen if each in digests and failed(config, each, digests[each])}
            if not worse:
                break
            broken |= worse
        return FoundModel(
            name=folder.name,
            config=config,
            given=given,
            fault="" if chosen or broken else _nothing(folder, config, numbers),
            digests=digests,
            chosen=tuple(each for each in chosen if each in digests),
            numbers=tuple(numbers),
            settling=tuple(settling),
        )

    def _numbers(self, folder: Path, file_name: str) -> list[int]:
        """Return the versions whose folders hold a model."""
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if _VERSION.fullmatch(each.name)]
        return sorted(int(name) for name in names if (folder / name / file_name).is_file())

    def _digest(self, folder: Path, now_ns: int) -> str | None:
        """Return the digest of a version's files; None while they are being written."""
        paths = files_of(folder)
        stamp = stamp_of(folder, paths)
        known = self.memory.get(str(folder))
        if known is not None and known.stamp == stamp:
            return known.digest
        if self._settles(str(folder), stamp, now_ns):
            return None
        digest = digest_of(folder, paths)
        if stamp_of(folder, files_of(folder)) != stamp:
            return None
        self.memory[str(folder)] = Remembered(stamp, digest)
        return digest

    def _settles(self, key: str, stamp: Stamp, now_ns: int) -> bool:
        """Say whether files changed too lately, by their times and by what was seen, to be whole."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != stamp:
            seen = self._seen[key] = (stamp, now_ns)
        newest_ns = max((each[2] for each in stamp), default=0)
        return now_ns - newest_ns < self._settle_ns and now_ns - seen[1] < self._settle_ns


def _nothing(folder: Path, config: ModelConfig, numbers: list[int]) -> str:
    """Say why a model has no version to be served."""
    if numbers:
        return (
            f"none of its versions ({', '.join(map(str, numbers[-8:]))}) is one that version_policy names; "
            "add it, or name others"
        )
    return (
        f"there is no version: put its file at {folder.name}/1/{config.file_name}; a version's folder is "
        "a number from 1 up"
    )
