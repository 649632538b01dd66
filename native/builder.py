"""Compiles the units whose source has changed, and keeps what it made in the store.

A unit is compiled from a copy of the very bytes that its key is a hash of, in a folder that is renamed into
place when it is whole. A lock has a second builder wait for the first and find its work done.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from mainspring import extras
from mainspring.native import store, units
from mainspring.native.units import PACKAGE, Sources, Unit

KEPT = 6
"""Compiled versions of a unit that are kept: those of branches that are worked on in turn."""
TOLD_LINES = 12
"""Lines that are told of what a failed compiler said."""
_UNFINISHED = "unfinished-"


class CannotCompile(Exception):
    """What is missing, or what went wrong."""


def build(unit: Unit, into: Path | None = None) -> str | None:
    """Compile a unit unless it is compiled already; return what was done, None if nothing.

    ``into`` is another store than the environment's. Raise CannotCompile with what is missing, or with what
    the compiler said.
    """
    sources = units.read(unit, units.package_root())
    done = None if into else store.compiled_folder(unit, sources.key)
    if done:
        # What is in use is the last to be removed.
        with suppress(OSError):
            os.utime(done)
        return None
    folder = Path(store.unit_folder(unit, sources.key, None if into is None else str(into)))
    check_tools()
    began = time.monotonic()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            if not folder.is_dir():
                _make(unit, sources, folder)
                _tidy(unit, folder.parent)
    except OSError as error:
        raise CannotCompile(f"{folder.parent} can't be written to: {error}") from None
    return f"compiled {len(sources.compiled)} modules in {time.monotonic() - began:.0f} s: {unit.purpose}"


def check_tools() -> None:
    """Raise CannotCompile with what is missing of what compiling needs, and how to get it."""
    missing = missing_system_tools()
    needed = ("mypyc", "setuptools") if sys.version_info >= (3, 12) else ("mypyc",)
    if any(find_spec(name) is None for name in needed):
        missing.insert(0, f"mypy and setuptools ({extras.command('serve')})")
    if missing:
        raise CannotCompile(f"missing: {'; '.join(missing)}")


def missing_system_tools() -> list[str]:
    """Return what compiling needs of the system and does not find, each with how to get it."""
    missing = []
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        missing.append(f"the C compiler {compiler!r} (apt-get install gcc, or set CC)")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        missing.append(f"{header} (apt-get install python3-dev)")
    return missing


def _make(unit: Unit, sources: Sources, folder: Path) -> None:
    """Compile into a new folder and rename it."""
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder.parent) as name:
        work, made = Path(name, "work"), Path(name, "made")
        for path, source in {"__init__.py": b"", **sources.files}.items():
            copy = work / PACKAGE / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source)
        made.mkdir()
        library = store.library_file(unit, str(made))
        _compile(unit, sources, work, Path(library))
        store.write_size(library)
        made.rename(folder)


def _compile(unit: Unit, sources: Sources, work: Path, output: Path) -> None:
    """Run the compiler in a process of its own, since it can't be told to work anywhere but in its folder."""
    wanted = {
        "files": [f"{module.replace('.', '/')}.py" for module in sources.compiled],
        "group": unit.library.removesuffix("__mypyc"),
        "library": unit.library,
        "output": str(output),
    }
    script = Path(units.package_root(), "native", "compiling.py")
    # -P: the script's folder holds modules of ours that must not hide others.
    command = [sys.executable, "-P", str(script), json.dumps(wanted)]
    done = subprocess.run(
        command, cwd=work, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode or not output.is_file():
        said = done.stdout.strip().splitlines()[-TOLD_LINES:]
        raise CannotCompile("\n".join(["the compiler failed:", *said]))


def _tidy(unit: Unit, folder: Path) -> None:
    """Remove what builders that were killed left, and all but the newest versions of a unit."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = sorted(folder.glob(f"{unit.name}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in made[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the store's lock."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
