"""Artifacts on disk: content-addressed executables and weights, and a manifest for each model.

``executables/SHA/graph.onnx`` (or ``plans.json`` with its kernels) and ``info.json``, ``weights/SHA.bin``,
``models/NAME/manifest.json``, and ``tuned/SHA.json`` for kernels that were timed on a GPU. Python models have
their folders in ``python/SHA`` and their environments in ``environments/SHA``, too. Every file is
written aside and renamed into place, so a reader sees all of it or none. Names and hashes are checked before
they become part of a path. A damaged or missing file is a `StoreError` that names the file and the command
that repairs it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from mainspring.compiler.artifact.errors import StoreError, owner_of, reading
from mainspring.compiler.artifact.manifest import (
    ENTRY_FILES,
    FORMAT,
    PYTHON,
    ExecutableInfo,
    Manifest,
    Source,
)
from mainspring.messages.model import ModelSpec
from mainspring.messages.targets import TARGET

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}|[A-Za-z0-9][A-Za-z0-9._-]{0,95}@"
    rf"([0-9]{{1,18}}-[0-9a-f]{{12}}|{TARGET.pattern})"
)
"""A model's name as people write it, or the name in a store of a version of a repository's model, or of a
model's artifact for a further target."""
_HASH = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".writing-"

Record = TypeVar("Record", Manifest, ExecutableInfo)
Fingerprint = tuple[tuple[str, int, int, int, int], ...]
"""Path, device, inode, length and time of modification of each file; zeros if the file can't be examined."""


def check_name(name: str) -> None:
    """Raise `StoreError` unless ``name`` can be a model's name, and so a folder's."""
    if not _NAME.fullmatch(name):
        at = "; behind '@' a version or a size is named" if "@" in name else ""
        raise StoreError(
            f"{name!r} can't be the name of a model: use at most 128 letters, digits, '.', '_' and '-', "
            f"beginning with a letter or a digit{at}"
        )


class Store:
    """A folder of artifacts. Opening it touches nothing; the first write makes the folder."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def names(self) -> list[str]:
        """Return the names of the stored models, sorted; raise `StoreError` if they can't be read."""
        with reading(self.root, self.root):
            if self.root.is_file():
                raise StoreError(f"{self.root} is a file, and a model store is a folder")
            if not self.root.is_dir():
                raise StoreError(
                    f"{self.root} is not a model store; "
                    f"`mainspring zoo resnet50 --store {self.root}` makes one"
                )
            models = self.root / "models"
            found = sorted(os.listdir(models)) if models.is_dir() else []
            return [name for name in found if _NAME.fullmatch(name) and self._manifest_path(name).is_file()]

    def check_writable(self) -> None:
        """Make the folder; raise `StoreError` if nothing could be stored in it."""
        with self.temporary():
            pass

    @contextmanager
    def scratch(self) -> Iterator[Store]:
        """Yield an empty store in this one's folder, for the block; `collect` removes what a crash leaves."""
        with self.temporary() as folder:
            yield Store(folder)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the model ``name``; raise `StoreError` if it is missing or damaged."""
        check_name(name)
        path = self._manifest_path(name)
        with reading(path, self.root):
            missing = not path.exists()
        if missing:
            raise StoreError(
                f"{self.root} holds no model {name!r} ({path} is missing); "
                f"`mainspring compile MODEL.onnx --name {name} --store {self.root}` would add it"
            )
        manifest = _read(path, Manifest, self._recompile(name), self.root)
        problems = manifest.problems()
        if manifest.name != name:
            problems.append(f"it is the manifest of {manifest.name!r}")
        problems += [
            f"{value!r} is not a SHA-256"
            for value in (manifest.executable, manifest.weights_hash)
            if not _HASH.fullmatch(value)
        ]
        if problems:
            raise StoreError(f"{path} is damaged: {problems[0]}; {self._recompile(name)}")
        return manifest

    def manifests(self) -> list[Manifest]:
        """Return the manifests of the stored models, in the order of their names.

        A manifest that can't be read is left out, with a warning that names the remedy. Raises `StoreError`
        for a fault that concerns more than one model, and if no manifest can be read.
        """
        found, unreadable = self.survey()
        for each in unreadable.values():
            _LOGGER.warning("left out of what is served: %s", each)
        return found

    def survey(self) -> tuple[list[Manifest], dict[str, StoreError]]:
        """Return the manifests of the stored models, in the order of their names, and faults of the others.

        A manifest that can't be read has its fault there, by the model's name. Raises `StoreError` for a
        fault that concerns more than one model, and if no manifest can be read.
        """
        found: list[Manifest] = []
        unreadable: dict[str, StoreError] = {}
        for name in self.names():
            try:
                found.append(self.manifest(name))
            except StoreError as error:
                unreadable[name] = error
        if unreadable and not found:
            raise next(iter(unreadable.values()))
        return found, unreadable

    def specs(self) -> list[ModelSpec]:
        """Return the specification of every stored artifact as `manifests` does the manifests."""
        return [manifest.spec() for manifest in self.manifests()]

    def weights_path(self, manifest: Manifest) -> Path:
        """Return the weights file, whose length was checked.

        File page ``i`` goes to the arena page ``pages[i]`` of a LOAD; the last page may be short.
        """
        path = self.root / "weights" / f"{_hash(manifest.weights_hash)}.bin"
        self._check_length(path, manifest.weights_bytes, manifest)
        return path

    def executable_path(self, manifest: Manifest) -> Path:
        """Return the executable's graph or plans, an existing file; kernels are beside it."""
        path = self.root / "executables" / _hash(manifest.executable) / ENTRY_FILES[manifest.engine]
        self._check_length(path, None, manifest)
        return path

    def executable_info(self, manifest: Manifest) -> ExecutableInfo:
        """Return the facts of the model's executable; raise `StoreError` if they are missing or damaged."""
        path = self.executable_path(manifest).with_name("info.json")
        info = _read(path, ExecutableInfo, self._recompile(manifest.name), self.root)
        if (info.executable, info.engine) != (manifest.executable, manifest.engine):
            raise StoreError(f"{path} is of another executable; {self._recompile(manifest.name)}")
        return info

    def known_executable(self, executable: str) -> ExecutableInfo | None:
        """Return the facts of a stored executable; None if it is missing or incomplete."""
        path = self.root / "executables" / _hash(executable) / "info.json"
        try:
            info = _read(path, ExecutableInfo, "", self.root)
            whole = hash_of_file(path.with_name(ENTRY_FILES.get(info.engine, "")), "") == executable
        except StoreError:
            return None
        return info if info.executable == executable and whole else None

    def verify(self, name: str) -> None:
        """Raise `StoreError` if a file of the model was altered since it was compiled; hash all bytes."""
        manifest = self.manifest(name)
        for path, expected in (
            (self.weights_path(manifest), manifest.weights_hash),
            (self.executable_path(manifest), manifest.executable),
        ):
            found = hash_of_file(path, self._recompile(name))
            if found != expected:
                raise StoreError(f"{path} was altered (SHA-256 {found}); {self._recompile(name)}")
        self.executable_info(manifest)

    def fingerprint(self, model: ModelSpec) -> Fingerprint:
        """Return the fingerprint of a model's manifest, weights and executable; a changed file changes it."""
        executable = self.root / "executables" / model.executable
        try:
            files = sorted(executable.iterdir())
        except OSError:
            files = []
        paths = (self.root / "weights" / f"{model.weights_hash}.bin", executable, *files)
        return (*self.manifest_fingerprint(model.stored_name), *map(_look_at, paths))

    def manifest_fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model's manifest alone."""
        return (_look_at(self._manifest_path(name)),)

    def put_weights(self, chunks: Iterable[bytes | memoryview]) -> tuple[str, int]:
        """Store a weights file; return its SHA-256 and its length."""
        digest, length = hashlib.sha256(), 0
        with self.temporary() as folder:
            file_path = Path(folder) / "weights.bin"
            with self._writing(file_path), file_path.open("wb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    length += file.write(chunk)
                to_disk(file)
            target = self.root / "weights" / f"{digest.hexdigest()}.bin"
            with self._writing(target):
                move(file_path, target)
        return digest.hexdigest(), length

    def put_executable(
        self, content: bytes, info: ExecutableInfo, kernels: Mapping[str, bytes] | None = None
    ) -> None:
        """Store an executable, its graph or plans, under the SHA-256 in its facts; ``kernels`` beside it."""
        target = self.root / "executables" / _hash(info.executable)
        for name, code in (kernels or {}).items():
            self._replace(target / name, code)
        self._replace(target / ENTRY_FILES[info.engine], content)
        self._replace(target / "info.json", msgspec.json.format(msgspec.json.encode(info)))

    def winner(self, name: str) -> bytes | None:
        """Return what is known of a kernel's fastest variant, by `put_winner`'s name; None if nothing is."""
        path = self.root / "tuned" / f"{_hash(name)}.json"
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error

    def winners(self) -> int:
        """Return of how many kernels the fastest variant is known."""
        folder = self.root / "tuned"
        return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0

    def put_winner(self, name: str, content: bytes) -> None:
        """Keep what was measured of a kernel's variants, under a SHA-256."""
        self._replace(self.root / "tuned" / f"{_hash(name)}.json", content)

    def put_manifest(self, manifest: Manifest) -> None:
        """Store a manifest, the last of an artifact's files: from then on the model exists."""
        check_name(manifest.name)
        self._replace(self._manifest_path(manifest.name), msgspec.json.format(msgspec.json.encode(manifest)))

    def remove(self, name: str) -> None:
        """Forget the model; `collect` then frees what no other model uses."""
        self.manifest(name)
        with self._writing(self._manifest_path(name)):
            shutil.rmtree(self._manifest_path(name).parent)

    def collect(self) -> int:
        """Delete unused weights and executables, and files of interrupted compilations; return the bytes
        freed.

        No model may be compiled into the store meanwhile.
        """
        manifests = [self.manifest(name) for name in self.names()]
        weights = {f"{manifest.weights_hash}.bin" for manifest in manifests}
        executables = {manifest.executable for manifest in manifests}
        unused = [path for path in self.root.glob("weights/*.bin") if path.name not in weights]
        unused += [path for path in self.root.glob("executables/*/*") if path.parent.name not in executables]
        left = list(self.root.glob(f"{_TEMPORARY}*"))
        unused += [path for folder in left for path in folder.rglob("*") if path.is_file()]
        freed = sum(path.stat().st_size for path in unused)
        for path in unused:
            with self._writing(path):
                path.unlink()
        for folder in [*left, *self._unused_python(executables, manifests)]:
            with self._writing(folder):
                shutil.rmtree(folder)
        return freed

    def _unused_python(self, executables: set[str], manifests: list[Manifest]) -> list[Path]:
        """Return the folders and environments of Python models that are gone."""
        found = [path for path in self.root.glob("python/*") if path.name not in executables]
        if not (made := list(self.root.glob("environments/*"))):
            return found
        infos = [self.executable_info(each) for each in manifests if each.engine == PYTHON]
        kept = {
            info.python.python.split("/")[1] for info in infos if info.python and "/" in info.python.python
        }
        return [*found, *(path for path in made if path.name not in kept)]

    def _manifest_path(self, name: str) -> Path:
        return self.root / "models" / name / "manifest.json"

    def _recompile(self, name: str) -> str:
        """Return the command that repairs the model."""
        try:
            path = self._manifest_path(name)
            source = msgspec.json.decode(path.read_bytes(), type=Manifest).source
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return f"`mainspring compile MODEL.onnx --name {name} --store {self.root}` compiles it again"
        return recompile_command(name, source, self.root)

    def _check_length(self, path: Path, expected: int | None, manifest: Manifest) -> None:
        try:
            with reading(path, self.root):
                found = path.stat().st_size
                if not os.access(path, os.R_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}; {self._recompile(manifest.name)}") from error
        if expected is not None and found != expected:
            raise StoreError(
                f"{path} has {found} bytes, not {expected}: it was altered; {self._recompile(manifest.name)}"
            )

    def _replace(self, target: Path, data: bytes) -> None:
        with self.temporary() as folder, self._writing(target):
            file_path = Path(folder) / target.name
            with file_path.open("wb") as file:
                file.write(data)
                to_disk(file)
            move(file_path, target)

    def temporary(self) -> tempfile.TemporaryDirectory[str]:
        """Make a folder on the store's own file system, so that a rename out of it is atomic.

        `collect` removes what a crash leaves. Raises `StoreError`.
        """
        with self._writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=self.root)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Turn an error of the operating system into a `StoreError`."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"can't write {path}: {error.strerror}{owner_of(path, error)}; choose a folder with enough "
                "room that you may write to, with --store DIR"
            ) from error


def to_disk(file: BinaryIO) -> None:
    """Write the file's bytes to the disk before its name: a loss of power could leave only the name."""
    file.flush()
    os.fsync(file.fileno())


def move(path: Path, target: Path) -> None:
    """Rename a file of the same file system to its place, and write that to the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def recompile_command(name: str, source: Source, root: Path) -> str:
    """Return the command that makes the model again, for an error's remedy."""
    where = f"--store {root}{source.options}"
    if source.kind == "zoo":
        return f"`mainspring zoo {source.path}{source.copy_options(name)} {where}` makes it again"
    return f"`mainspring compile {source.path} --name {name} {where}` compiles it again"


def _hash(value: str) -> str:
    """Return ``value`` if it is a SHA-256 in hexadecimal, and so safe in a path."""
    if not _HASH.fullmatch(value):
        raise StoreError(f"{value!r} is not a SHA-256 in hexadecimal, so nothing is stored under it")
    return value


def _look_at(path: Path) -> tuple[str, int, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return str(path), 0, 0, 0, 0
    # A change of permissions alone changes only the time of the last change of state.
    return str(path), found.st_dev, found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)


def _read(path: Path, kind: type[Record], remedy: str, root: Path) -> Record:
    try:
        with reading(path, root):
            record = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; {remedy}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); {remedy}") from error
    if record.format != FORMAT:
        raise StoreError(f"{path} has format {record.format}, this version reads {FORMAT}; {remedy}")
    return record


def hash_of_file(path: Path, remedy: str) -> str:
    """Return a file's SHA-256; raise `StoreError` with ``remedy`` if it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; {remedy}") from error
