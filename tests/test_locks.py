"""The locks hold what pyproject.toml asks for, each with hashes, and agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("dev", "serve", "docs", "nvrtc", "cluster")
BREAKING = {
    *("grpcio", "msgpack", "mypy", "numpy", "onnx", "onnxruntime", "protobuf", "starlette", "uvicorn"),
    "websockets",
}
"""Whose new major versions break what uses them, and are not to be had before the tests ran with them."""
BEYOND_DEV = {("protobuf", "serve"): 7}
"""Majors that dev's own tools do not allow, and that the tests without those tools passed with."""
_PIN = re.compile(
    r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)(?: ; ([^\\]+))?((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$",
    re.M,
)


def locked(name: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return versions, markers and hashes of what a lock holds, by project."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for project, version, marker, hashes in _PIN.findall((ROOT / f"requirements/{name}.lock").read_text()):
        found.setdefault(canonicalize_name(project), []).append((version, marker.strip(), hashes))
    return found


def wanted(extra: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


def named(extra: str) -> set[str]:
    """Return the projects that an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(line).name) for line in project["optional-dependencies"][extra]}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_lock_holds_what_is_asked_for_with_hashes(extra: str) -> None:
    lock = locked(extra)
    lines = (ROOT / f"requirements/{extra}.lock").read_text().splitlines()
    assert sum(map(len, lock.values())) == sum(bool(line) and line[0].isalnum() for line in lines)
    for requirement in wanted(extra):
        for version, _, _ in lock[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(version), f"{requirement}: make lock"
    assert all(hashes for pins in lock.values() for _, _, hashes in pins)


def majors() -> dict[str, list[tuple[str, int]]]:
    """Return the first major version that is too high, with the extra that says so, by project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[tuple[str, int]]] = {}
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in map(Requirement, lines):
            bounds = [Version(each.version) for each in requirement.specifier if each.operator == "<"]
            name = canonicalize_name(requirement.name)
            found.setdefault(name, []).extend((extra, each.major) for each in bounds if not each.minor)
            if name in BREAKING:
                assert bounds, f"{requirement} of [{extra}] has no upper bound"
    return found


def test_the_tests_run_with_the_highest_major_that_is_allowed() -> None:
    tested, bounds = locked("dev"), majors()
    assert bounds.keys() >= BREAKING
    for name in BREAKING:
        highest = max(Version(version).major for version, _, _ in tested[name])
        wrong = [
            (extra, major)
            for extra, major in bounds[name]
            if major != BEYOND_DEV.get((name, extra), highest) + 1
        ]
        assert not wrong, f"{name} {highest} is tested, and these say otherwise: {wrong}"


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_python_gets_one_version_of_each(extra: str, python: str) -> None:
    where = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    for name, pins in locked(extra).items():
        fitting = [version for version, marker, _ in pins if not marker or Marker(marker).evaluate(where)]
        assert len(fitting) <= 1, f"{name}: {fitting}"


def test_what_serves_is_what_is_tested() -> None:
    tested = locked("dev")
    for extra in ("serve", "docs", "nvrtc"):
        for name, pins in locked(extra).items():
            if name not in named("nvrtc"):
                assert {each[0] for each in pins} <= {each[0] for each in tested[name]}, name
