"""Size of the client alone: its distributions, their size, and the time of its import.

``make bench-base`` installs this checkout without extras into a new environment, as ``pip install .`` does,
and compares with numpy alone. The scheduler is compiled into it where this machine can, as it is for a user;
``MAINSPRING_NATIVE=0`` leaves that out.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mainspring.experiments.bench.report import Figure, publish

ROOT = Path(__file__).resolve().parents[2]
TOOLS = frozenset({"pip", "setuptools", "wheel"})
COMPARED = "numpy"
LISTED = """
import os
from importlib.metadata import distributions
for each in distributions():
    paths = {os.path.realpath(each.locate_file(file)) for file in each.files or ()}
    print(each.name, sum(os.path.getsize(path) for path in paths if os.path.isfile(path)))
"""
IMPORT_NUMPY = "import numpy"
IMPORT_CLIENT = "import numpy; from mainspring import AsyncClient, Client"


class Took(NamedTuple):
    """Time of a process, in seconds."""

    processor_s: float
    wall_s: float


def main() -> int:
    """Measure once; return the exit code, 1 if a target was missed."""
    parser = argparse.ArgumentParser("make bench-base", description=__doc__)
    parser.add_argument("--imports", type=int, default=21, help="how often each import is timed, in turns")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = _install(Path(folder, "venv"))
        sizes = sizes_of(_run(python, LISTED))
        alone, client = _import_times(python, options.imports)
    figures = figures_of(sizes, alone, client)
    publish("base", "The client alone", figures, sizes_bytes=sizes)
    return int(any(figure.met is False for figure in figures))


def sizes_of(listed: str) -> dict[str, int]:
    """Return the bytes of each distribution but the environment's own tools, from the lines of `LISTED`."""
    pairs = (line.split() for line in listed.splitlines())
    return {name: int(size) for name, size in pairs if name.lower() not in TOOLS}


def figures_of(sizes: dict[str, int], alone: Sequence[Took], client: Sequence[Took]) -> list[Figure]:
    """Return what was measured with its targets: bytes by distribution, and what both imports took."""
    beside = sum(sizes.values()) - sizes[COMPARED]
    numpy_s, numpy_wall_s = (min(times) for times in zip(*alone, strict=True))
    client_s, client_wall_s = (min(times) for times in zip(*client, strict=True))
    return [
        Figure("distributions", len(sizes), "", 4, note=", ".join(sorted(sizes))),
        Figure("numpy", sizes[COMPARED] / 1e6, "MB"),
        Figure("all others", beside / 1e6, "MB", 25),
        Figure("import of numpy", numpy_s, "s", note="processor time, the least of all runs"),
        Figure("import of the client beyond that", client_s - numpy_s, "s", 0.15, note="the same"),
        Figure("by the clock", client_wall_s - numpy_wall_s, "s", note="the same on an idle machine"),
    ]


def _install(venv: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)]
    subprocess.run(install, check=True)
    return python


def _import_times(python: str, times: int) -> tuple[list[Took], list[Took]]:
    found: tuple[list[Took], list[Took]] = ([], [])
    for _ in range(times):
        for program, durations in zip((IMPORT_NUMPY, IMPORT_CLIENT), found, strict=True):
            began, before_s = time.monotonic(), _processor_s()
            _run(python, program)
            durations.append(Took(_processor_s() - before_s, time.monotonic() - began))
    return found


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(python: str, program: str) -> str:
    # Away from the checkout, whose package would be imported instead.
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", program]
        return subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main())
