"""What is compiled together, from which source, and under which key.

A unit is compiled as a whole and used as a whole. Its key is a hash of everything of ours that the result
depends on: the modules themselves, and what they import, directly or not, for types and constants end up in
the compiled code. This file is read whenever a compiled module is imported, so it imports little.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NamedTuple

PACKAGE = "mainspring"
FORMAT = "3"
"""To be changed with how `builder` compiles, which is part of every key."""
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(mainspring(?:\.\w+)*)[ \t]+import[ \t]+\(?([\w, \t]*)"
    rb"|import[ \t]+(mainspring[\w.]*))",
    re.MULTILINE,
)
_STRUCT = re.compile(rb"^[ \t]*class[ \t]+\w+\([^)]*\bStruct\b", re.MULTILINE)
"""Modules that define Structs stay Python: those are C already, and mypyc drops options like ``frozen``."""


class Unit(NamedTuple):
    """Modules that are compiled together."""

    name: str
    purpose: str
    """What is quicker if it is compiled, for people."""
    cost: str
    """What it costs if it is not."""
    include: tuple[str, ...]
    """Folders, with all below them, and single modules, as paths below the package."""
    exclude: tuple[str, ...] = ()
    """Modules and folders below those that stay Python."""

    @property
    def library(self) -> str:
        """Name under which the compiled code is imported."""
        return f"{PACKAGE}_{self.name}__mypyc"


CORE = Unit(
    name="core",
    purpose="the scheduler and the worker's core",
    cost="3 to 4 times the CPU",
    include=(
        "cluster",
        "scheduler",
        "worker/core",
    ),
)

SIMULATOR = Unit(
    name="simulator",
    purpose="the simulator",
    cost="1.5 times the CPU for each simulation",
    include=(
        *("simulator/agenda", "simulator/controller", "simulator/device", "simulator/draws"),
        *("simulator/fleet", "simulator/gateway", "simulator/network", "simulator/outcomes"),
        *("simulator/simulation", "telemetry/samples", "telemetry/taken"),
        "traces/records",
    ),
)

UNITS = (CORE, SIMULATOR)


class Sources(NamedTuple):
    """A unit's source as it was read at once."""

    compiled: tuple[str, ...]
    """Full names of the modules that are compiled, sorted."""
    files: dict[str, bytes]
    """Every file that the unit is made from, by its path below the package's parent."""
    key: str


def package_root() -> str:
    """Return the folder of the package."""
    # Not resolved: below a link, the real folder is not the package's.
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(unit: Unit, root: str) -> Sources:
    """Read a unit's source from the package in a folder; raise OSError if that can't be done."""
    files: dict[str, bytes] = {}
    compiled = []
    for path in _python_files(unit, root):
        source = _read(root, path)
        if not _STRUCT.search(source):
            files[path] = source
            compiled.append(_module(path))
    pending = list(files.items())
    while pending:
        path, source = pending.pop()
        for imported in (*_parents(path), *_imported(root, source)):
            if imported not in files:
                files[imported] = _read(root, imported)
                pending.append((imported, files[imported]))
    return Sources(tuple(sorted(compiled)), files, _key(unit, files))


def _python_files(unit: Unit, root: str) -> list[str]:
    """Return the paths, below the package, of the modules that a unit asks for, sorted."""
    found = []
    for entry in unit.include:
        if os.path.isfile(os.path.join(root, f"{entry}.py")):
            found.append(f"{entry}.py")
        for folder, folders, names in os.walk(os.path.join(root, entry)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            below = os.path.relpath(folder, root)
            found += [f"{below}/{name}" for name in names if name.endswith(".py") and name != "__init__.py"]
    excluded = tuple(f"{entry}{end}" for entry in unit.exclude for end in (".py", "/"))
    return sorted(path for path in found if not path.startswith(excluded))


def _parents(path: str) -> list[str]:
    """Return the ``__init__.py`` of the packages that a file is in, but for the outermost."""
    folders = path.split("/")[:-1]
    return [f"{'/'.join(folders[:depth])}/__init__.py" for depth in range(1, len(folders) + 1)]


def _imported(root: str, source: bytes) -> list[str]:
    """Return the paths of the modules of ours that a source imports anywhere."""
    found = []
    for match in _IMPORT.finditer(source):
        module = (match[1] or match[3]).decode()
        names = (match[2] or b"").decode().replace(",", " ").split()
        for name in (module, *(f"{module}.{name}" for name in names)):
            below = name.split(".")[1:]
            for path in (f"{'/'.join(below)}.py", "/".join((*below, "__init__.py"))):
                if below and os.path.isfile(os.path.join(root, path)):
                    found.append(path)
                    break
    return found


def _read(root: str, path: str) -> bytes:
    with open(os.path.join(root, path), "rb") as file:
        return file.read()


def _module(path: str) -> str:
    return f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}"


def _key(unit: Unit, files: dict[str, bytes]) -> str:
    """Hash what compiled code depends on: how it is made, for which interpreter, from what."""
    digest = hashlib.sha256()
    made = (FORMAT, sys.implementation.cache_tag, sys.version, EXTENSION_SUFFIXES[0], unit)
    digest.update(repr(made).encode())
    for path, source in sorted(files.items()):
        digest.update(f"\0{path}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.hexdigest()[:24]
