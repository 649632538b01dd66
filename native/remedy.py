"""What to do about a unit that runs as Python."""

from __future__ import annotations

from pathlib import Path

from mainspring import extras
from mainspring.native import store
from mainspring.native.builder import CannotCompile, check_tools
from mainspring.native.finder import Loaded, Use


def how_to_compile(loaded: Loaded) -> str:
    """Return what makes a unit run compiled: a command that works here, after what is missing for it."""
    command = extras.compile_command()
    if loaded.use is Use.OFF:
        return f"unset {store.SWITCH}"
    if loaded.use is Use.BROKEN:
        return f"remove {Path(loaded.detail.partition(': ')[0]).parent}, then {command}"
    try:
        check_tools()
    except CannotCompile as error:
        return f"{error}; then {command}"
    return f"{command} (about a minute)"
