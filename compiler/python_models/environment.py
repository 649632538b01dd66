"""The Python of a model: one that exists, or an environment made once of its ``requirements.txt``.

An environment is a folder of the store, named by what it is made of: the requirements and the Python that it
is made with. Models with the same requirements share one. Workers install nothing: they run what is here.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.python_folder import ENVIRONMENTS, REQUIREMENTS
from mainspring.compiler.artifact.store import Store

TIMEOUT_S = 1800.0
"""Longest time that pip may take."""
_CHECK_S = 60.0
_MOST_CHARACTERS = 500
_FACTS = "import sys, numpy; print(sys.version, sys.platform, sys.prefix)"


def python_for(store: Store, folder: Path, given: str) -> str:
    """Return the Python of a model as `PythonFacts.python` has it; make its environment if it lacks one.

    ``given`` is the path of one that exists, or empty. Raises `CompileError` if it can't run a model, or if
    the requirements can't be installed.
    """
    requirements = folder / REQUIREMENTS
    if given:
        path = shutil.which(given)
        if path is None:
            raise CompileError(
                f"--python {given} is no program that can be run here; give the path of a Python"
            )
        _facts(path, f"--python {given}")
        return str(Path(path).absolute())
    if not requirements.is_file():
        return ""
    try:
        wanted = requirements.read_bytes()
    except OSError as error:
        raise CompileError(f"{requirements} can't be read: {error.strerror}") from error
    made_of = wanted + b"\0" + _facts(sys.executable, sys.executable).encode()
    relative = f"{ENVIRONMENTS}/{hashlib.sha256(made_of).hexdigest()}"
    target = store.root / relative
    if not (target / "bin" / "python").exists():
        _make(store, requirements, target)
    return f"{relative}/bin/python"


def _facts(python: str, called: str) -> str:
    """Return what tells one Python from another; raise `CompileError` if it can't run a model."""
    said = _run([python, "-I", "-c", _FACTS], _CHECK_S)
    if said.returncode == 0:
        return said.stdout.strip()
    why = _last_line(said) or "it says nothing"
    hint = "; install numpy there, which tensors are handed over in" if "numpy" in why else ""
    raise CompileError(f"{called} can't run a model: {why}{hint}")


def _make(store: Store, requirements: Path, target: Path) -> None:
    with store.temporary() as aside:
        fresh = Path(aside) / "environment"
        made = _run([sys.executable, "-m", "venv", str(fresh)], _CHECK_S)
        if made.returncode:
            raise CompileError(f"no environment can be made for {requirements}: {_last_line(made)}")
        pip = [
            str(fresh / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        done = _run([*pip, "numpy", "--requirement", str(requirements)], TIMEOUT_S)
        if done.returncode:
            raise CompileError(f"{requirements} can't be installed: {_last_line(done)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.rename(target)
        except OSError as error:
            if not target.is_dir():
                raise CompileError(f"{target} can't be written: {error.strerror}") from error


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program whose output is kept; one that can't run, or takes too long, ends with code 127."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 127, "", f"it was not done after {timeout_s:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} can't be run: {error.strerror}")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line that says what went wrong: pip's errors, else the last one."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return "".join((errors or lines)[-1:])[:_MOST_CHARACTERS]
