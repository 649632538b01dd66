"""Other projects' programs for comparisons: each in an environment of its own, never one of Mainspring's.

They are fetched with pip once, into a cache outside the repository, and need some hundred megabytes
there. What can't be had is not a failure of a benchmark: it says so and does without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "mainspring-bench"
_DONE = ".complete"
_FETCH_TIMEOUT_S = 900
_LINES = 5


class Unavailable(Exception):
    """A program that can't be had or does not start on this machine, and why."""


def environment(name: str, packages: Sequence[str], *, dependencies: bool = True) -> Path:
    """Return a virtual environment with these packages, made if it is not there yet; raise `Unavailable`.

    ``dependencies``: whether those of the packages are installed too.
    """
    folder = CACHE / name
    wanted = "\n".join(packages)
    done = folder / _DONE
    if done.exists() and done.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(folder)], "a virtual environment can't be made")
    options = ["--quiet", "--disable-pip-version-check", *([] if dependencies else ["--no-deps"])]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *options, *packages]
    call(pip, f"{' '.join(packages)} can't be installed")
    done.write_text(wanted)
    return folder


def call(command: Sequence[str], otherwise: str, folder: Path | None = None) -> None:
    """Run a command; raise `Unavailable` with its last words if it fails."""
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        words = "\n".join((error.stderr or error.stdout).strip().splitlines()[-_LINES:])
        raise Unavailable(f"{otherwise}: {words}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{otherwise}: {error}") from None
