"""``gpu_check.pyz``: a zip archive that Python runs, with all files in one stream of xz.

Equal files are stored once, and similar ones lie near each other. ``index.json`` says which bytes of the
stream are which file; `runner` becomes ``__main__.py``.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

import mainspring
from mainspring.experiments.gpu_check.bundle import runner
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


MOST_BYTES = 40 << 20
_DICTIONARY_BYTES = 128 << 20
_DATE = (1980, 1, 1, 0, 0, 0)


SMALLEST = 6
"""Preset of LZMA: the archive's files get no smaller by a higher one."""


def pack(
    files: Mapping[str, bytes],
    facts: Mapping[str, Any],
    output: Path,
    most_bytes: int = MOST_BYTES,
    preset: int = SMALLEST,
) -> int:
    """Write the archive; return its length. Raises `BundleError`, which says what takes the room, if more."""
    content = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
    paths: dict[str, list[str]] = {}
    for path in sorted(files, key=_kind):
        paths.setdefault(hashlib.sha256(files[path]).hexdigest(), []).append(path)
    stream = b"".join(content[digest] for digest in paths)
    packed = lzma.compress(stream, lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=_filters(preset))
    blobs = [{"sha256": digest, "bytes": len(content[digest]), "paths": paths[digest]} for digest in paths]
    index = {
        **facts,
        "sha256": hashlib.sha256(packed).hexdigest(),
        "packed_bytes": len(packed),
        "blobs": blobs,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_name(f".{output.name}")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        parts = {
            "__main__.py": Path(runner.__file__).read_bytes(),
            runner.INDEX: msgspec.json.encode(index),
        }
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(runner.STREAM, _DATE), packed, zipfile.ZIP_STORED)
    length = aside.stat().st_size
    if length > most_bytes:
        aside.unlink()
        raise BundleError(
            f"the archive would take {length / 2**20:.1f} MiB, more than {most_bytes / 2**20:.0f}: "
            f"{what_takes_room(files)}"
        )
    aside.replace(output)
    return length


def what_takes_room(files: Mapping[str, bytes]) -> str:
    """Return the largest kinds of files, each compressed by itself, in one line."""
    groups: dict[str, dict[str, bytes]] = {}
    for path, data in files.items():
        groups.setdefault(_group(path), {})[hashlib.sha256(data).hexdigest()] = data
    sizes = Counter(
        {
            group: len(lzma.compress(b"".join(each.values()), filters=_filters(1)))
            for group, each in groups.items()
        }
    )
    return ", ".join(f"{group} about {size / 2**20:.1f} MiB" for group, size in sizes.most_common(8))


def _group(path: str) -> str:
    parts = PurePosixPath(path).parts
    if parts[0] == "bundle":
        return PurePosixPath(path).name if parts[1] == "stores" else parts[1]
    package = parts[2] if parts[0] in (runner.SITE, runner.NUMPY) else parts[1]
    return package.removesuffix(".libs")


def _kind(path: str) -> tuple[str, str, str]:
    name = PurePosixPath(path)
    return name.suffix, name.name.partition(".")[0], path


def _filters(preset: int) -> list[dict[str, int]]:
    return [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": _DICTIONARY_BYTES},
    ]
