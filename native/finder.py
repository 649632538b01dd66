"""Serves compiled modules to ``import``, if they were compiled from the source that is there now.

All of a unit's code is in one library, which offers a function for each module that makes it. Modules of one
unit know the layout of each other's objects, so they are served all or none: a library that can't be loaded
is passed over with a warning, and the unit runs as Python.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Sequence
from enum import Enum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import NamedTuple

from mainspring.native import store, units
from mainspring.native.units import PACKAGE, UNITS, Unit


class Use(Enum):
    """Whether a unit runs compiled, and if not, why."""

    COMPILED = "compiled"
    OFF = "off"
    """The environment says so."""
    MISSING = "missing"
    """Nothing was compiled from the source as it is now."""
    BROKEN = "broken"
    """What was compiled can't be loaded."""


class Loaded(NamedTuple):
    """One unit in this process."""

    use: Use
    detail: str
    """What is wrong with what is broken, and where what is compiled lies."""
    modules: frozenset[str] = frozenset()
    """Full names of the modules that are served."""


class Compiled(Loader):
    """Makes one module by the function that its unit's library has for it."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module; its body has run when this returns."""
        return _make(self._unit, spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` has run the module's body."""


class Finder(MetaPathFinder):
    """Finds the compiled modules; everything else is left to the finders behind it."""

    def __init__(self, of: Sequence[Unit] = UNITS) -> None:
        self._lock = threading.RLock()
        self._loaded: dict[str, Loaded] = {}
        self._unit_of_folder: dict[str, list[Unit]] = {}
        for unit in of:
            for entry in unit.include:
                of_folder = self._unit_of_folder.setdefault(entry.split("/")[0], [])
                if unit not in of_folder:
                    of_folder.append(unit)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module if it is compiled."""
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        folder, dot, _ = fullname.removeprefix(f"{PACKAGE}.").partition(".")
        if not dot:
            return None
        for unit in self._unit_of_folder.get(folder, ()):
            loaded = self.loaded(unit)
            if fullname in loaded.modules:
                return ModuleSpec(fullname, Compiled(unit), origin=loaded.detail)
        return None

    def loaded(self, unit: Unit) -> Loaded:
        """Return a unit, which is loaded when this is first asked."""
        with self._lock:
            if unit.name not in self._loaded:
                self._loaded[unit.name] = _load(unit)
            return self._loaded[unit.name]


def install() -> Finder:
    """Put the finder before all others, once in a process, and return it."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return finder
    finder = Finder()
    sys.meta_path.insert(0, finder)
    return finder


def _load(unit: Unit) -> Loaded:
    """Load a unit's library, if there is one for the source as it is now."""
    if store.switched_off():
        return Loaded(Use.OFF, f"{store.SWITCH}=0")
    try:
        sources = units.read(unit, units.package_root())
    except OSError as error:
        return Loaded(Use.MISSING, f"its source can't be read: {error}")
    folder = store.compiled_folder(unit, sources.key)
    if folder is None:
        return Loaded(Use.MISSING, "not compiled from this source")
    file = store.library_file(unit, folder)
    try:
        if not store.is_whole(file):
            raise ImportError("it is cut off")
        _load_library(unit, file)
        absent = [name for name in sources.compiled if not hasattr(sys.modules[unit.library], _entry(name))]
        if absent:
            raise ImportError(f"it lacks {', '.join(absent)}")
    except (ImportError, OSError, ValueError) as error:
        sys.modules.pop(unit.library, None)
        from mainspring import extras

        warnings.warn(
            f"{unit.purpose} will run as Python, since compiled code can't be loaded: {error}; "
            f"remove {folder} and run {extras.compile_command()}",
            RuntimeWarning,
            stacklevel=2,
        )
        return Loaded(Use.BROKEN, f"{file}: {error}")
    return Loaded(Use.COMPILED, file, frozenset(sources.compiled))


def _load_library(unit: Unit, file: str) -> None:
    """Load a library as the module under whose name its own code looks for it."""
    spec = ModuleSpec(unit.library, ExtensionFileLoader(unit.library, file), origin=file)
    spec.has_location = True
    sys.modules[unit.library] = library = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(library)


def _entry(module: str) -> str:
    """Return the attribute of the library that holds the function which makes a module."""
    return f"init_{module.replace('.', '___')}"


def _make(unit: Unit, module: str) -> ModuleType:
    """Call the function which makes a module.

    mypyc would have one more library for each module that does only this; calling the function from here
    saves making, finding and loading them.
    """
    import ctypes

    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    entry = _entry(module)
    pointer = get_pointer(getattr(sys.modules[unit.library], entry), f"{unit.library}.{entry}".encode())
    made = ctypes.PYFUNCTYPE(ctypes.py_object)(pointer)()
    assert isinstance(made, ModuleType)
    return made
