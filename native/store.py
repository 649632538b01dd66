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
