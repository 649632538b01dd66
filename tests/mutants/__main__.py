"""Play towns with a fault planted in the product: ``python -m tests.mutants [SEEDS [NAME]...]``.

Each patch here is applied to a copy of the product, whose towns are played until one fails. No check of a
town may know a patch: others plant their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LEFT_OUT = shutil.ignore_patterns(
    *(
        ".git",
        ".venv",
        "out",
        "build",
        "docs",
        "tests",
        "deploy",
        "experiments",
        "*.so",
        "__pycache__",
        "*.pyc",
    )
)
LONGEST_S = 1_800


class Found(NamedTuple):
    """The outcome of one patch."""

    name: str
    seeds: int
    """Seeds that were played until one failed; 0 if none did."""
    took_s: float


def patches() -> list[Path]:
    """Return all patches."""
    return sorted(HERE.glob("*.patch"))


def apply(patch: Path, folder: Path, *, dry: bool = False) -> None:
    """Apply a patch to a copy of the product; raise CalledProcessError if it does not fit."""
    options = ["--dry-run"] if dry else []
    command = ["patch", "--batch", "--silent", "--strip=1", *options, f"--input={patch}"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


def find(patch: Path, seeds: int) -> Found:
    """Play a patched copy's towns until one fails."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mainspring-mutant-") as name:
        folder = Path(name) / "product"
        shutil.copytree(ROOT, folder, symlinks=True, ignore=LEFT_OUT)
        apply(patch, folder)
        environment = {**os.environ, "PYTHONPATH": str(folder), "MAINSPRING_NATIVE": "0"}
        command = [sys.executable, "-m", "mainspring.simulator.town", "--first", str(seeds)]
        ran = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        said = ran.stdout.split()
    failed = ran.returncode == 1 and said and said[0].isdigit()
    if not failed and ran.returncode != 0:
        raise RuntimeError(f"{patch.stem}: the towns can't be played: {ran.stderr[-2000:]}")
    return Found(patch.stem, int(said[0]) if failed else 0, time.monotonic() - began_s)


def main(arguments: list[str]) -> int:
    """Find each patch; return the exit status, 1 if more than one was not found."""
    seeds = int(arguments[0]) if arguments else 500
    chosen = [each for each in patches() if not arguments[1:] or each.stem in arguments[1:]]
    missed = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for found in pool.map(lambda each: find(each, seeds), chosen):
            missed += not found.seeds
            said = f"by seed {found.seeds - 1}" if found.seeds else f"NOT within {seeds} seeds"
            print(f"{found.name:36} {said:24} {found.took_s:7.1f} s", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
