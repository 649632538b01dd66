"""A checkout of a small package to compile, laid out as ours is, and programs that run in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from mainspring import native

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = {
    "__init__.py": "from mainspring.native import install\n\ninstall()\n",
    "inner/__init__.py": "",
    "inner/counter.py": """
from mainspring.outer.constants import STEP


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def step(self) -> int:
        self.count += STEP
        return self.count
""",
    "inner/pair.py": """
from mainspring.inner.counter import Counter


def pair() -> tuple[int, int]:
    counter = Counter()
    return counter.step(), counter.step()
""",
    "inner/options.py": (
        "import msgspec\n\n\nclass Options(\n    msgspec.Struct, frozen=True\n):\n    size: int = 1\n"
    ),
    "outer/__init__.py": "",
    "outer/constants.py": "STEP = 3\n",
}
COMPILER = """#!/bin/sh
# As gcc, in a hurry: what mypyc adds to each library is compiled once for all, and nothing is made quicker.
for each; do
    case "$last" in -c) source=$each;; -o) object=$each;; esac
    last=$each
done
case "$source" in "" | */__native*) exec gcc "$@" -O0;; esac
kept={kept}/$(sha1sum < "$source" | cut -c 1-40)
[ -f "$kept" ] && exec cp "$kept" "$object"
gcc "$@" -O0 && cp "$object" "$kept.$$" && mv "$kept.$$" "$kept"
"""
ASK = """
from mainspring import native
from mainspring.inner import options, pair
kinds = ["Python" if module.__file__.endswith(".py") else "compiled" for module in (pair, options)]
print(pair.pair(), *kinds, native.CORE.state().use.value)
"""


def write(folder: Path) -> Path:
    """Write the checkout into a folder and return it."""
    for path, source in FILES.items():
        (folder / "mainspring" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mainspring" / path).write_text(source)
    for name in ("native.py", "extras.py"):
        shutil.copy(Path(native.PACKAGE, name), folder / "mainspring")
    write_setup(folder, "native.CORE", "inner/*.py")
    return folder


def write_setup(folder: Path, core: str, pattern: str) -> None:
    """Write our `setup.py` into a checkout, with one pattern of what is compiled."""
    shutil.copy(ROOT / "setup.py", folder)
    set_modules(folder, f'MODULES = {{{core}: ("{pattern}",)}}\n')


def set_modules(folder: Path, table: str) -> None:
    """Replace the table of what a checkout's `setup.py` compiles."""
    text = (folder / "setup.py").read_text(encoding="utf-8")
    changed, found = re.subn(r"^MODULES = \{.*?^\}\n", table, text, flags=re.MULTILINE | re.DOTALL)
    assert found == 1
    (folder / "setup.py").write_text(changed, encoding="utf-8")


def clone(folder: Path) -> Path:
    """Return a copy of what is in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for path in listed.split("\0"):
        if os.path.lexists(ROOT / path) and path:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)
    return folder


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python with arguments in a folder, whose package it imports."""
    changed = {**os.environ, "PYTHONPATH": str(folder), native.SWITCH: "", native.REPORTED: "", **environment}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder, env=changed, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(folder: Path, *arguments: str, **environment: str) -> tuple[str, str]:
    """Run Python likewise to its end; return what it printed and what it said on stderr."""
    process = start(folder, *arguments, **environment)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out.strip(), errors


def ask(folder: Path, **environment: str) -> tuple[str, str]:
    """Run what the package is for; return its results and how its modules run, and what is said on stderr."""
    return run(folder, "-c", ASK, **environment)


def compile_package(folder: Path, **environment: str) -> tuple[str, str]:
    """Do what `make native` does; return what it says on stdout and stderr.

    The compiler is `COMPILER`, if the environment names none.
    """
    compiler = folder.parent / "compiler-in-a-hurry"
    if not compiler.exists():
        kept = folder.parent.parent / "compiled-once"
        kept.mkdir(exist_ok=True)
        compiler.write_text(COMPILER.format(kept=kept))
        compiler.chmod(0o755)
    return run(folder, "setup.py", "native", **{"CC": str(compiler), **environment})
