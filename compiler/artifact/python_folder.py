"""The folder of a Python model as one file of an artifact, and that file as a folder again.

The executable of a Python model is a tar archive of its folder, and so is named by what the folder holds,
with `FACTS` in front: two models of one folder are two executables, with a process each. It is unpacked in
the store's ``python/SHA``, by the compiler, or by the first worker of a host that has fetched the artifact.
Environments are in ``environments/SHA``, and are never fetched.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import ExecutableInfo, Manifest, PythonFacts
from mainspring.compiler.artifact.store import Store

FACTS = "facts.json"
UNPACKED = "python"
ENVIRONMENTS = "environments"
CODE, DESCRIPTION, REQUIREMENTS = "model.py", "model.toml", "requirements.txt"
MOST_BYTES = 1 << 30
"""Most bytes of a folder: its archive is made in memory."""
MOST_FILES = 10_000
_LEFT_OUT = {"__pycache__", ".git", ".venv", "venv", ".ipynb_checkpoints"}


def facts_of(info: ExecutableInfo) -> PythonFacts:
    """Return the facts about the process of a Python model's executable."""
    assert info.python is not None, f"executable {info.executable[:12]} is a Python model's"
    return info.python


def is_python(folder: Path) -> bool:
    """Return whether a folder holds a Python model: either of its two files shows that it is to be one."""
    return (folder / CODE).is_file() or (folder / DESCRIPTION).is_file()


def pack(folder: Path, facts: PythonFacts) -> bytes:
    """Return the archive of a model's folder; equal folders give equal archives.

    Raises `CompileError` for a folder that is too large, or that can't be read.
    """
    packed, total = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, FACTS, msgspec.json.encode(facts))
        for count, path in enumerate(_files(folder)):
            try:
                total += path.stat().st_size
                if total > MOST_BYTES or count >= MOST_FILES:
                    raise CompileError(
                        f"{folder} has more than {MOST_BYTES:,} bytes or {MOST_FILES:,} files: keep in it "
                        "what the model reads alone"
                    )
                _add(archive, path.relative_to(folder).as_posix(), path.read_bytes())
            except OSError as error:
                raise CompileError(f"{path} can't be read: {error.strerror}") from error
    return packed.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder in the order of their paths, but for caches and environments."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        yield from (Path(root, name) for name in sorted(files) if not name.endswith(".pyc"))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def unpacked(store: Store, manifest: Manifest) -> Path:
    """Return the folder that a model's archive holds, whose bytes are those of the archive.

    It is written where it is missing or was altered. The archive's hash is the caller's to check. Raises
    `StoreError` if it can't be written.
    """
    archive, target = store.executable_path(manifest), store.root / UNPACKED / manifest.executable
    with tarfile.open(archive) as packed:
        members = [member for member in packed.getmembers() if member.isreg()]
        if all(_same(packed, member, target / member.name) for member in members):
            return target.resolve()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as aside:
                packed.extractall(f"{aside}/new", members, filter="data")
                if target.exists():
                    target.rename(f"{aside}/altered")
                _place(Path(aside, "new"), target)
        except OSError as error:
            raise StoreError(f"{target} can't be written: {error.strerror}") from error
    return target.resolve()


def _place(fresh: Path, target: Path) -> None:
    """Rename a folder to its place, unless another worker has just put the same there."""
    try:
        fresh.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _same(packed: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bool:
    content = packed.extractfile(member)
    try:
        return (
            content is not None and path.stat().st_size == member.size and path.read_bytes() == content.read()
        )
    except OSError:
        return False


def interpreter(store: Store, facts: PythonFacts) -> Path:
    """Return the Python that runs a model; raise `StoreError` if this host does not have it.

    Without one of its own it is the Python that runs this.
    """
    if not facts.python:
        return Path(sys.executable)
    path = store.root / facts.python
    if not os.access(path, os.X_OK):
        raise StoreError(
            f"the Python of {facts.name}, {path}, is not on this host: workers install nothing; compile the "
            "model here, or with `--python` and a path that all hosts have"
        )
    # Not resolved: an environment is found by the link's own place.
    return path.absolute()
