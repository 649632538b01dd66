"""Where compiled units lie: one folder for each key, below the environment that they were made for.

A wheel may bring some inside the package; those compiled later lie beside it, as the package's folder may not
be writable.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

from mainspring.native import units
from mainspring.native.units import PACKAGE, Unit

SWITCH = "MAINSPRING_NATIVE"
"""Environment variable: ``0`` runs everything as Python."""
FOLDER = "MAINSPRING_NATIVE_DIR"
"""Environment variable: the one folder of compiled units, instead of the environment's and the wheel's."""
IN_PACKAGE = (PACKAGE, "native", "compiled")
"""Path of the units that a wheel brings, below the folder that it is installed in."""


def switched_off() -> bool:
    """Return whether compiled code is not to be used."""
    return os.environ.get(SWITCH, "") == "0"


def store_folder() -> str:
    """Return the folder with a folder for each compiled unit and key."""
    return os.environ.get(FOLDER) or os.path.join(sys.prefix, "share", "mainspring", "native")


def unit_folder(unit: Unit, key: str, store: str | None = None) -> str:
    """Return the folder of a unit that was compiled under a key, in this store or the environment's."""
    return os.path.join(store or store_folder(), f"{unit.name}-{key}")


def compiled_folder(unit: Unit, key: str) -> str | None:
    """Return the folder of a unit that is compiled under a key, None if it is not."""
    brought = os.path.join(os.path.dirname(units.package_root()), *IN_PACKAGE)
    stores = [store_folder()] if os.environ.get(FOLDER) else [store_folder(), brought]
    folders = (unit_folder(unit, key, store) for store in stores)
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def library_file(unit: Unit, folder: str) -> str:
    """Return the file in a unit's folder that holds its code."""
    return os.path.join(folder, unit.library + EXTENSION_SUFFIXES[0])


def write_size(file: str) -> None:
    """Note beside a whole library how long it is."""
    with open(f"{file}.size", "w", encoding="ascii") as note:
        note.write(str(os.path.getsize(file)))


def is_whole(file: str) -> bool:
    """Return whether a library is as long as it was made; raise OSError or ValueError if that is not known.

    The system would not refuse to load one that was cut off, it would kill the process.
    """
    with open(f"{file}.size", encoding="ascii") as note:
        return os.path.getsize(file) == int(note.read())
