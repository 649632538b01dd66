"""What a wheel holds: the product without its experiments, and compiled cores that are found afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mainspring.native import store, units
from mainspring.native.units import CORE, UNITS, Unit

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = """
import json, sys
from pathlib import Path
sys.path.insert(0, ".")
from mainspring.native import backend, builder
def compiled(unit, into):
    if %r:
        raise builder.CannotCompile("missing: a compiler")
    folder = Path(into, unit.name + "-key")
    folder.mkdir(parents=True)
    (folder / "library.so").write_text("")
builder.build = compiled
print(json.dumps(backend.build_wheel(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what is in the repository, with what a build of long ago left."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, text=True, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for path in listed.splitlines():
        if (ROOT / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)
    stale = folder / "build" / "lib" / "mainspring" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    return folder


def wheel(checkout: Path, output: Path, *, fails: bool) -> Path:
    """Build a wheel of a checkout with a compiler that works, or does not; return its file."""
    command = [sys.executable, "-c", BUILD % fails, str(output)]
    done = subprocess.run(command, cwd=checkout, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("3 to 4 times the CPU: missing: a compiler" in done.stderr) == fails
    return output / str(json.loads(done.stdout.splitlines()[-1]))


def test_a_wheel_holds_compiled_cores_and_no_experiments(checkout: Path, tmp_path: Path) -> None:
    made = wheel(checkout, tmp_path, fails=False)
    names = {name.partition(".data/purelib/")[2] or name for name in zipfile.ZipFile(made).namelist()}
    assert {f"{'/'.join(store.IN_PACKAGE)}/{unit.name}-key/library.so" for unit in UNITS} <= names
    assert {"mainspring/cli/demonstration/run.py", "mainspring/py.typed"} <= names
    assert any(name.startswith("mainspring/console/page/") for name in names)
    tops = {"/".join(name.split("/")[:2]) for name in names if name.startswith("mainspring/")}
    assert "mainspring/experiments" not in tops
    assert "mainspring/stale.py" not in tops
    assert not [name for name in names if name.split("/")[0] in {"tests", "experiments", "build"}]
    assert sorted(path.name for path in (checkout / "build").iterdir()) == ["lib"], "it leaves nothing behind"
    assert not made.name.endswith("-none-any.whl"), "compiled code is of one Python and platform"


def test_without_a_compiler_the_wheel_is_pure(checkout: Path, tmp_path: Path) -> None:
    made = wheel(checkout, tmp_path, fails=True)
    assert made.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(made).namelist() if "/compiled/" in name]


def test_tools_are_asked_for_where_they_are_of_use(checkout: Path) -> None:
    program = (
        "import json, sys\nsys.path.insert(0, '.')\nfrom mainspring.native import backend, builder\n"
        "builder.missing_system_tools = lambda: %r\nprint(json.dumps(backend.get_requires_for_build_wheel()))"
    )

    def needed(missing: list[str], switch: str) -> str:
        command = [sys.executable, "-c", program % missing]
        environment = {**os.environ, store.SWITCH: switch}
        done = subprocess.run(
            command, cwd=checkout, env=environment, text=True, capture_output=True, check=True
        )
        return done.stdout.splitlines()[-1]

    assert "mypy" in needed([], "")
    assert "msgspec" in needed([], "")
    assert "mypy" not in needed([], "0")
    assert "mypy" not in needed(["gcc"], "")


def test_units_that_a_wheel_brought_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = tmp_path / "site"
    brought = site.joinpath(*store.IN_PACKAGE, "core-key")
    brought.mkdir(parents=True)
    monkeypatch.setattr(units, "package_root", lambda: str(site / "mainspring"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv(store.FOLDER, raising=False)
    assert store.compiled_folder(CORE, "key") == str(brought)
    assert store.compiled_folder(CORE, "other") is None
    later = Path(store.unit_folder(CORE, "key"))
    later.mkdir(parents=True)
    assert store.compiled_folder(CORE, "key") == str(later)
    monkeypatch.setenv(store.FOLDER, str(tmp_path / "elsewhere"))
    assert store.compiled_folder(CORE, "key") is None, "one folder alone was named"


@pytest.mark.parametrize("unit", UNITS)
def test_one_unit_can_be_named(unit: Unit, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mainspring.native", unit.name]
    environment = {store.FOLDER: str(tmp_path / "no"), "CC": "no-such-compiler", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, cwd=ROOT)
    assert unit.purpose in done.stderr
    assert done.stderr.count("will run as Python") == 1
