"""Where compiled units lie: one folder for each key, below the environment that they were made for."""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

from mainspring.native.units import Unit

SWITCH = "MAINSPRING_NATIVE"
"""Environment variable: ``0`` runs everything as Python."""
FOLDER = "MAINSPRING_NATIVE_DIR"
"""Environment variable: another folder of compiled units."""


def switched_off() -> bool:
    """Return whether compiled code is not to be used."""
    return os.environ.get(SWITCH, "") == "0"


def store_folder() -> str:
    """Return the folder with a folder for each compiled unit and key."""
    return os.environ.get(FOLDER) or os.path.join(sys.prefix, "share", "mainspring", "native")


def unit_folder(unit: Unit, key: str) -> str:
    """Return the folder of a unit that was compiled under a key."""
    return os.path.join(store_folder(), f"{unit.name}-{key}")


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
