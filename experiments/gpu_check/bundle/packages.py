"""The code that travels in a bundle: Mainspring itself, and the packages that the check imports.

Packages with compiled extensions come for each version of Python: for this one from what is installed, for
others from the wheels of the same versions.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

import mainspring
from mainspring.experiments.gpu_check.bundle.contents import BundleError

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
HERE = platform.python_version().rpartition(".")[0]
NUMPY = "numpy"
"""Used only where the machine has none of its own."""
PACKAGES = (
    *("msgspec", "pyzmq", "psutil", "msgpack", "uvloop", "mypy_extensions"),
    *("typer", "annotated-doc", "shellingham", "rich", "markdown-it-py", "mdurl", "pygments"),
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
)
MONITOR, MONITOR_VERSION = "nvidia-ml-py", "13.615.71"
"""NVML for Python, which clocks and throttling are read with: 60 KB for any Python, under the BSD licence.

It need not be installed here, and is left out where it can't be downloaded.
"""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_LEFT_OUT = {"__pycache__", "tests", "f2py", "testing"}
"""Folders that nothing here imports."""
_NOT_RUN = {".pyi", ".a", ".h", ".c", ".pxd", ".pyx", ".exe", ".typed"}

Files = dict[str, bytes]
"""Content by path."""


def own_files() -> Files:
    """Return Mainspring's Python files; its cores run as Python, since they are compiled for one version."""
    root = Path(mainspring.__file__).parent
    found: Files = {}
    # The package's folders are links in a checkout.
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix == ".py":
                found[f"mainspring/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    return found


def package_files(python: str, wheels: Path) -> Iterator[tuple[str, Files]]:
    """Yield each package with its files for a version of Python; wheels are kept in a folder.

    Raises `BundleError` if they can't be downloaded.
    """
    if python == HERE:
        yield from ((name, _installed(name)) for name in (*PACKAGES, NUMPY))
        return
    for name in (*PACKAGES, NUMPY):
        yield name, _in_wheel(_wheel(name, metadata.version(name), python, wheels / python))


def monitor_files(wheels: Path) -> Files:
    """Return the files of `MONITOR`; none where it can't be downloaded."""
    try:
        return _in_wheel(_wheel(MONITOR, MONITOR_VERSION, HERE, wheels / "any"))
    except BundleError:
        return {}


def _installed(name: str) -> Files:
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError as error:
        raise BundleError(f"{name} is not installed here, and the check imports it") from error
    return {
        path.as_posix(): path.read_binary()
        for path in files
        if _wanted(PurePosixPath(path)) and path.parts[0] != ".."
    }


def _wheel(name: str, version: str, python: str, folder: Path) -> Path:
    """Return the wheel of a version, downloaded unless that was done."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = sorted(folder.glob(pattern))
    if found:
        return found[0]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", python, "--dest", str(folder)]
    command += [part for each in PLATFORMS for part in ("--platform", each)]
    done = subprocess.run([*command, f"{name}=={version}"], capture_output=True, text=True, check=False)
    found = sorted(folder.glob(pattern))
    if done.returncode or not found:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise BundleError(
            f"{name} {version} for Python {python} can't be downloaded ({lines[-1]}); `--python {HERE}` "
            "makes a bundle for this version alone, without a network"
        )
    return found[0]


def _in_wheel(path: Path) -> Files:
    with zipfile.ZipFile(path) as wheel:
        # Some wheels, such as numpy's, list their folders too.
        names = (each.filename for each in wheel.infolist() if not each.is_dir())
        return {name: wheel.read(name) for name in names if _wanted(PurePosixPath(name))}


def _wanted(path: PurePosixPath) -> bool:
    parts = path.parts
    if any(part.endswith((".data", ".dist-info")) for part in parts):
        return path.name == "METADATA"
    return not _LEFT_OUT & {*parts} and path.suffix not in _NOT_RUN and bool(path.name)
