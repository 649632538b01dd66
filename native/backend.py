"""The build backend of ``pyproject.toml``: setuptools, which puts the compiled cores into a wheel if it can.

Where tools are missing, or compiling fails, the wheel has Python's files alone and ``mainspring doctor`` says
what is missing. ``MAINSPRING_NATIVE=0`` leaves compiling out; an editable installation never compiles, since
its source will change.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel

from mainspring.native import builder, store
from mainspring.native.units import PACKAGE, UNITS

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

TOOLS = ("mypy>=1.13,<3", "msgspec>=0.19")
"""What compiling needs beside setuptools: the second for the types that the cores take from it."""


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return what setuptools needs, and what compiling does if this machine can compile."""
    needed = list(build_meta.get_requires_for_build_wheel(config_settings))
    return needed if store.switched_off() or builder.missing_system_tools() else [*needed, *TOOLS]


class WheelWithCores(bdist_wheel):  # type: ignore[misc]
    """Builds in a folder of its own, so that nothing stale gets in, and adds what it can compile."""

    def run(self) -> None:
        """Make the wheel; it is of this Python and platform if it holds compiled code."""
        with tempfile.TemporaryDirectory() as folder:
            build = self.reinitialize_command("build", reinit_subcommands=True)
            build.build_base = folder
            self.bdist_dir = str(Path(folder, "wheel"))
            self.run_command("build")
            self.root_is_pure = not compile_into(Path(build.build_lib, *store.IN_PACKAGE))
            super().run()


def compile_into(folder: Path) -> bool:
    """Compile every unit into a folder; return whether there is one. What can't be is said on stderr."""
    if store.switched_off():
        return False
    for unit in UNITS:
        try:
            print(builder.build(unit, folder), file=sys.stderr)
        except builder.CannotCompile as error:
            print(f"{PACKAGE}: {unit.purpose} will run as Python, at {unit.cost}: {error}", file=sys.stderr)
    for lock in folder.glob("lock"):
        lock.unlink()
    return any(folder.glob("*/*.so"))
