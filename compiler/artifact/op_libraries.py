"""Libraries of operators beyond ONNX Runtime's own, which run only where the operator of a machine allows it.

A library is code that is run, so none is ever loaded because a model's file, or a client, names it. `allow`
tells a process, once, which ones it may load: installed packages (``onnxruntime-extensions``), files, and
folders, of whose files a model's configuration may name some. An executable says which libraries it was
compiled with, by their SHA-256, and opens with exactly these.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainspring.compiler.artifact.errors import ExecutableError, StoreError

if TYPE_CHECKING:
    import onnxruntime

SENT = "sent-files"
"""The folder of the files that clients have sent: nothing in one is ever loaded."""
_SUFFIX = ".so"


class OpLibrary(msgspec.Struct, frozen=True):
    """A library as an executable remembers it."""

    name: str
    """The package and its version, or the file's path."""
    sha256: str


_allowed: list[str] = []


def allow(entries: Sequence[str]) -> None:
    """Have this process load these libraries, and no others, where a model needs them."""
    _allowed[:] = entries


def entries() -> tuple[str, ...]:
    """Return what is allowed, as it was said."""
    return tuple(_allowed)


def remedy(entry: str) -> str:
    """Say how to allow a library."""
    return (
        f'say `op_libraries = ["{entry}"]` in [cluster] of mainspring.toml, or `--op-library {entry}` to '
        "`mainspring compile`: a library is code that is run, so none is loaded unasked"
    )


def is_path(entry: str) -> bool:
    """Say whether an entry is a file or a folder, and not a package."""
    return os.sep in entry or entry.endswith(_SUFFIX)


def check_entry(entry: str) -> None:
    """Raise `ValueError` for a library that is not here, with how to get it; nothing is loaded."""
    if is_path(entry):
        if not Path(entry).exists():
            raise ValueError(f"op_libraries has {entry!r}, which does not exist: give a file, or a folder")
    elif importlib.util.find_spec(_module(entry)) is None:
        raise ValueError(
            f"op_libraries has {entry!r}, a package that is not installed: `pip install {entry}`, or give "
            "the path of a library, with a / in it"
        )


def paths(named: Sequence[Path] = ()) -> dict[Path, str]:
    """Return the allowed libraries and what each is called: packages, files, and what ``named`` may name.

    Raises `ValueError` for a package without a library of operators, and as `check_entry`.
    """
    found: dict[Path, str] = {}
    for entry in _allowed:
        check_entry(entry)
        if not is_path(entry):
            import importlib.metadata

            path = _of_package(entry)
            found[path] = f"{entry} {importlib.metadata.version(entry)}"
        elif Path(entry).is_file():
            path = Path(entry).resolve()
            found[path] = str(path)
    for path in map(Path.resolve, named):
        if path not in found and permits(path):
            found[path] = str(path)
    return found


def permits(path: Path) -> bool:
    """Say whether a resolved file is allowed, by itself or by a folder that it is in."""
    allowed = [Path(entry).resolve() for entry in _allowed if is_path(entry)]
    return path.is_file() and SENT not in path.parts and any(path.is_relative_to(each) for each in allowed)


def identity(path: Path, name: str) -> OpLibrary:
    """Return what an executable remembers of a library; raise OSError if it can't be read."""
    found = path.stat()
    return OpLibrary(name, _digest(path, found.st_size, found.st_mtime_ns))


def path_of(library: OpLibrary) -> Path:
    """Return the allowed library that is the same; raise `ExecutableError` if there is none."""
    try:
        found = paths([Path(library.name)] if is_path(library.name) else [])
        same = [path for path, name in found.items() if identity(path, name).sha256 == library.sha256]
    except (ValueError, OSError) as error:
        raise ExecutableError(f"the model has operators of {library.name}: {error}") from None
    if same:
        return same[0]
    known = library.name.partition(" ")[0]
    if known in _allowed or is_path(library.name):
        other = ", ".join(name for name in found.values() if name.partition(" ")[0] == known)
        if other:
            raise ExecutableError(
                f"the model was compiled with operators of {library.name}, and here is {other}, which is "
                "not the same file: install the other one, or compile the model again"
            )
    raise ExecutableError(
        f"the model has operators of {library.name}, which this process may not load: {remedy(known)}"
    )


def register(options: onnxruntime.SessionOptions, libraries: Sequence[OpLibrary]) -> None:
    """Have a session know the operators of these libraries; raise `ExecutableError`."""
    for library in libraries:
        load(options, path_of(library))


def load(options: onnxruntime.SessionOptions, path: Path) -> None:
    """Have a session know the operators of an allowed library; raise `ExecutableError`."""
    try:
        options.register_custom_ops_library(str(path))
    except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
        raise ExecutableError(f"{path} is no library of operators: {error}") from error


def check_known(libraries: Sequence[OpLibrary]) -> None:
    """Raise `StoreError` unless all of these libraries are allowed, and the same as they were."""
    try:
        for library in libraries:
            path_of(library)
    except ExecutableError as error:
        raise StoreError(str(error)) from error


def _module(package: str) -> str:
    return package.replace("-", "_")


def _of_package(package: str) -> Path:
    """Return a package's library, as onnxruntime-extensions tells it."""
    found = getattr(importlib.import_module(_module(package)), "get_library_path", None)
    if found is None:
        raise ValueError(
            f"op_libraries has {package!r}, which does not say where its library is (it has no "
            "get_library_path()): give the path of the library instead"
        )
    return Path(found()).resolve()


@functools.lru_cache(maxsize=64)
def _digest(path: Path, _size: int, _changed_ns: int) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
