"""The compiled cores: whether this process runs them, and if it does not, why.

`setup.py` compiles them with mypyc. A wheel has them beside its sources, where ``import`` prefers them. In a
checkout `make native` puts them into ``build/native``, each with a *stamp*: a hash of every source of ours that
it was made from. A build whose stamp does not match the sources is never used, so an edit takes effect at once.
Every process imports this file, so it imports little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec, source_hash, spec_from_file_location
from types import ModuleType
from typing import NamedTuple

SWITCH = "MAINSPRING_NATIVE"
"""Environment variable: ``0`` runs everything as Python, and leaves compiling out of an installation."""
REPORTED = "MAINSPRING_NATIVE_STALE"
"""Environment variable: the cores whose stale build a parent process has reported, so that this one need not."""
PACKAGE = os.path.dirname(os.path.abspath(__file__))
# Not resolved: below a link, the real folder is not the package's.
CHECKOUT = os.path.dirname(PACKAGE)
BUILDS = os.path.join(CHECKOUT, "build", "native", str(sys.implementation.cache_tag))
STAMP = "stamp"
_INTERPRETER = "Python"


class Use(Enum):
    """The use of a core: compiled or not, and if not, why."""

    COMPILED = "compiled"
    PARTLY = "partly"
    """Some of its modules could not be compiled, and run as Python."""
    OFF = "off"
    """The environment says so."""
    STALE = "stale"
    """A source was changed since it was compiled."""
    MISSING = "missing"
    """It was not compiled."""


class State(NamedTuple):
    """The way in which one core runs in this process."""

    use: Use
    detail: str


class Core:
    """Modules that are compiled together; finds what `make native` built of them for ``import``."""

    def __init__(self, name: str, purpose: str, cost: str) -> None:
        """``purpose`` is what compiling makes quicker, ``cost`` what that takes as Python instead."""
        self.name, self.purpose, self.cost = name, purpose, cost
        self.folder = os.path.join(BUILDS, name)
        self._modules: frozenset[str] = frozenset()
        self._stamped: list[str] = []
        self._changed: str | None = None

    @property
    def library(self) -> str:
        """Name of the module that holds the code of all of them."""
        return f"mainspring_{self.name}__mypyc"

    def open(self) -> None:
        """Read the stamp of the build, if there is one."""
        try:
            with open(os.path.join(self.folder, STAMP), encoding="utf-8") as file:
                modules, *self._stamped = file.read().splitlines()
        except (OSError, ValueError):
            return
        self._modules = frozenset(modules.split())

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module's compiled code is; None if ``import`` is to look for its source."""
        if fullname not in self._modules:
            return None
        if changed := self.changed():
            if self._is_first_to_report():
                from mainspring.extras import compile_command

                said = f"mainspring: {self.purpose}: plain Python, since {changed} was changed after compiling"
                print(f"{said}; {compile_command()}", file=sys.stderr)
            return None
        file = os.path.join(self.folder, *fullname.split(".")) + EXTENSION_SUFFIXES[0]
        return spec_from_file_location(fullname, file)

    def changed(self) -> str:
        """Return a source that was changed since the build was made, empty if none was.

        A process looks once: what it has loaded stays as it is.
        """
        if self._changed is None:
            self._changed = next((line[17:] for line in self._stamped if stamped(line[17:]) != line), "")
        return self._changed

    def state(self) -> State:
        """Return how the core runs in this process, for a caller that reports it if that is not compiled."""
        if switched_off():
            return State(Use.OFF, f"{SWITCH}=0")
        if changed := self.changed():
            self._is_first_to_report()
            return State(Use.STALE, f"{changed} was changed after compiling")
        if find_spec(self.library) is None:
            return State(Use.MISSING, "not compiled")
        folder = self.folder if self._modules else CHECKOUT
        kept = [f"{module} is not compiled: {why}" for module, why in left_out(folder, self.name).items()]
        return State(Use.PARTLY, "; ".join(kept)) if kept else State(Use.COMPILED, folder)

    def _is_first_to_report(self) -> bool:
        """Return whether neither this process nor one that started it has reported the stale build."""
        reported = os.environ.get(REPORTED, "").split()
        os.environ[REPORTED] = " ".join({*reported, self.name})
        return self.name not in reported


CORE = Core("core", "the scheduler and the worker's core", "3 to 4 times the CPU")
SIMULATOR = Core("simulator", "the simulator", "1.5 times the CPU for each simulation")
PATH = Core("path", "what processes do for each request", "1.3 times the CPU for each request")
CORES = (CORE, SIMULATOR, PATH)


def install() -> None:
    """Have ``import`` find the compiled cores, or sources alone where the environment says so."""
    if switched_off():
        sys.path_hooks.insert(0, _find_sources)
        return
    for core in CORES:
        core.open()
        sys.meta_path.insert(0, core)


def switched_off() -> bool:
    """Return whether compiled code is not to be used."""
    return os.environ.get(SWITCH, "") == "0"


def left_out(folder: str | os.PathLike[str], core: str) -> dict[str, str]:
    """Return the modules that a core's build in a folder left as Python, each with why."""
    try:
        with open(_left_out(folder, core), encoding="utf-8") as file:
            return dict(line.rstrip("\n").split(": ", 1) for line in file)
    except FileNotFoundError:
        return {}


def write_left_out(folder: str | os.PathLike[str], core: str, modules: dict[str, str]) -> None:
    """Note beside a build what `left_out` is to return of it."""
    if modules:
        with open(_left_out(folder, core), "w", encoding="utf-8") as file:
            file.writelines(f"{module}: {why}\n" for module, why in modules.items())


def _left_out(folder: str | os.PathLike[str], core: str) -> str:
    return os.path.join(folder, "mainspring", f"{core}.left-out")


def stamp(modules: Iterable[str], sources: Iterable[str]) -> str:
    """Return the stamp of modules that are made from sources, given as paths below the checkout."""
    return "\n".join([" ".join(modules), *map(stamped, [_INTERPRETER, *sources])])


def stamped(source: str) -> str:
    """Return a stamp's line for a source as it is now, or for the interpreter."""
    if source == _INTERPRETER:
        content = sys.version.encode()
    else:
        try:
            with open(os.path.join(CHECKOUT, source), "rb") as file:
                content = file.read()
        except OSError:
            return f"{'absent':16} {source}"
    return f"{source_hash(content).hex()} {source}"


def how_to_compile(state: State) -> str:
    """Return what makes a core run compiled: a command that works here, after what is missing for it."""
    from mainspring import extras

    if state.use is Use.OFF:
        return f"unset {SWITCH}"
    if state.use is Use.PARTLY:
        return f"mend what is said of them, then {extras.compile_command()}"
    missing = extras.missing_compiler()
    return "; then ".join([*missing, f"{extras.compile_command()} (about a minute)"])


def _find_sources(path: str) -> FileFinder:
    """Be the finder of a folder of ours, from which Python would take compiled modules before sources."""
    if path != PACKAGE and not path.startswith(f"{PACKAGE}{os.sep}"):
        raise ImportError
    return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))
