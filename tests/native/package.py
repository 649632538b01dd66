"""A package of two small modules to compile, laid out as ours is, and programs that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mainspring.native import store, units
from mainspring.native.units import Unit

UNIT = Unit(name="little", purpose="two modules", cost="at a cost", include=("inner",))
COUNTER = """
from mainspring.outer.constants import STEP


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def step(self) -> int:
        self.count += STEP
        return self.count
"""
PAIR = """
from mainspring.inner.counter import Counter


def pair() -> tuple[int, int]:
    counter = Counter()
    return counter.step(), counter.step()
"""
STRUCT = "import msgspec\n\n\nclass Options(\n    msgspec.Struct, frozen=True\n):\n    size: int = 1\n"
PROGRAM = f"""
import sys
from mainspring.native import builder, finder, units
unit = units.Unit{tuple(UNIT)!r}
found = finder.Finder((unit,))
sys.meta_path.insert(0, found)
"""


def write(folder: Path) -> Path:
    """Write the package into a folder and return it."""
    root = folder / "mainspring"
    files = {
        "__init__.py": "",
        "inner/__init__.py": "",
        "inner/counter.py": COUNTER,
        "inner/pair.py": PAIR,
        "inner/options.py": STRUCT,
        "outer/__init__.py": "",
        "outer/constants.py": "STEP = 3\n",
        "outer/stranger.py": "from mainspring.inner.pair import pair\n",
    }
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)
    (root / "native").symlink_to(Path(units.package_root(), "native"))
    return root


def start(root: Path, program: str, **environment: str) -> subprocess.Popen[str]:
    """Run a program with the package, ``unit`` and ``found``, the finder, at hand."""
    changed = {
        **os.environ,
        "PYTHONPATH": str(root.parent),
        store.FOLDER: str(root.parent / "store"),
        store.SWITCH: "",
        **environment,
    }
    command = [sys.executable, "-c", PROGRAM + program]
    return subprocess.Popen(
        command, cwd=root.parent, env=changed, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(root: Path, program: str, **environment: str) -> tuple[str, str]:
    """Run a program likewise to its end; return what it printed and what it said on stderr."""
    process = start(root, program, **environment)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.strip(), errors
