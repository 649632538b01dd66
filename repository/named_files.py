"""Files that a configuration names: initial states of sequences, rows that the model takes, names of classes.

States and rows are in the folders ``initial_state`` and ``warmup`` of a model, beside its versions. What they
hold is part of the configuration, so a changed file makes another artifact. Files of labels have a name on
each line, by index; one that can't be used costs only its labels, and a warning says what is wrong. Files are
read again when their stamps change, which tell cheaply whether files are still the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mainspring.messages.sequences import MOST_INITIAL_BYTES
from mainspring.repository import config_groups
from mainspring.repository.model_config import ModelConfig, TensorConfig
from mainspring.repository.reading import ConfigFault

MAX_FILES = 4096
"""Most files in one version's folder; further files are not part of the model."""

_MOST_LINKS = 8
"""Most links to folders, within one another."""

FileStamp = tuple[str, int, int, int, int]
"""A file's path, size, time of change in ns, inode, and the kernel's own time of change in ns, which nobody
can set: it tells of a file that was written again with its size and time as they were."""
Stamp = tuple[FileStamp, ...]
"""The stamps of all files that count."""


def stamp_of(folder: Path | str) -> Stamp:
    """Return the stamp of the files that a version is made of, sorted; raise OSError.

    Thousands of models are looked at every few seconds, so this is a system call for each folder and file
    and little else.
    """
    stamps = sorted(_stamps(str(folder), ""), key=lambda stamp: stamp[0].split("/"))
    return tuple(stamps[:MAX_FILES])


def stamp_of_file(path: str) -> Stamp:
    """Return the stamp of one file, empty if there is no such file; raise OSError if it can't be read."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    if not stat.S_ISREG(status.st_mode):
        return ()
    return (_stamp(os.path.basename(path), status),)


def digest_of(folder: Path | str, stamp: Stamp) -> str:
    """Return the SHA-256 of the names and contents of the files with this stamp; raise OSError."""
    digest = hashlib.sha256()
    for name, *_ in stamp:
        with open(f"{folder}/{name}", "rb") as file:
            digest.update(f"{name}\0{os.fstat(file.fileno()).st_size}\0".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _stamp(name: str, status: os.stat_result) -> FileStamp:
    return name, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _stamps(folder: str, under: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[FileStamp]:
    """Yield the stamps of a folder's files, and of those in folders within it.

    ``above`` are the folders that links led through: none is entered from within itself. Names that begin
    with two dots are how Kubernetes writes a volume: each file is a link through them, and named beside them.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            name = under + entry.name
            if entry.name.startswith(".."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _stamps(entry.path, f"{name}/", above)
            elif entry.is_file():
                yield _stamp(name, entry.stat())
            elif entry.is_dir():
                status, own = entry.stat(), os.stat(folder)
                there = (status.st_dev, status.st_ino)
                within = (*above, (own.st_dev, own.st_ino))
                if there not in within and len(within) <= _MOST_LINKS:
                    yield from _stamps(entry.path, f"{name}/", (*within, there))


MAX_FILE_BYTES = 1 << 20
MAX_LABEL_CHARACTERS = 256

Settles = Callable[[str, Stamp, int], bool]
"""A function that says whether a file of this path and stamp may still be written: it changed recently."""


class Labels(NamedTuple):
    """The names of classes of one model."""

    by_output: dict[str, tuple[str, ...]]
    warnings: tuple[str, ...]


class _LabelFile(NamedTuple):
    stamp: Stamp
    labels: tuple[str, ...]
    fault: str


class LabelFiles:
    """Reads the files of a repository's models, each once for every state that it has."""

    def __init__(self, settles: Settles) -> None:
        self._settles = settles
        self._files: dict[str, _LabelFile] = {}

    def of(self, folder: str, outputs: Iterable[TensorConfig], now_ns: int) -> Labels | None:
        """Return the labels of a model's outputs, None while a file of theirs is being written.

        ``folder`` is the model's.
        """
        found: dict[str, tuple[str, ...]] = {}
        warnings = []
        for output in outputs:
            if not output.label_file:
                continue
            file = self._file(f"{folder}/{output.label_file}", now_ns)
            if file is None:
                return None
            if file.fault:
                warnings.append(
                    f"label_filename of output {output.name!r}: {output.label_file} {file.fault}; "
                    "classification answers without labels"
                )
            elif file.labels:
                found[output.name] = file.labels
        return Labels(found, tuple(warnings))

    def forget(self, folder: str) -> None:
        """Forget the files of a model that is gone."""
        for path in [path for path in self._files if path.startswith(f"{folder}/")]:
            del self._files[path]

    def _file(self, path: str, now_ns: int) -> _LabelFile | None:
        try:
            stamp = stamp_of_file(path)
        except OSError as error:
            return _LabelFile((), (), f"can't be read: {error.strerror}")
        if not stamp:
            return _LabelFile((), (), "is not in the model's folder")
        if not Path(path).resolve().is_relative_to(Path(path).parent.resolve()):
            # Clients are told what is in it.
            return _LabelFile((), (), "is a link to a file outside the model's folder")
        known = self._files.get(path)
        if known is None or known.stamp != stamp:
            if self._settles(path, stamp, now_ns):
                return None
            known = self._files[path] = _read(path, stamp)
        return known


def _read(path: str, stamp: Stamp) -> _LabelFile:
    ((_, size, *_),) = stamp
    if size > MAX_FILE_BYTES:
        return _LabelFile(stamp, (), f"has {size:,} bytes; it may have {MAX_FILE_BYTES:,}")
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        return _LabelFile(stamp, (), f"can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _LabelFile(stamp, (), f"is not UTF-8 ({error.reason} at byte {error.start})")
    labels = [line.strip() for line in lines]
    while labels and not labels[-1]:
        labels.pop()
    long = next((at for at, label in enumerate(labels, 1) if len(label) > MAX_LABEL_CHARACTERS), None)
    if long is not None:
        return _LabelFile(stamp, (), f"has more than {MAX_LABEL_CHARACTERS} characters in line {long}")
    return _LabelFile(stamp, tuple(labels), "")


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

    def _rows(self, config: ModelConfig, folder: str, now_ns: int) -> tuple[config_groups.WarmupInput, ...]:
        found = []
        for row in config.warmup:
            if not row.file:
                found.append(row)
                continue
            path, what = f"{folder}/{config_groups.FOLDER}/{row.file}", f"input_data_file {row.file!r}"
            digest = self._kept(path, what, config_groups.MOST_BYTES, _digest, now_ns)
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
