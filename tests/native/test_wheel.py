"""What a wheel holds: the product without its experiments, and compiled code that runs."""

from __future__ import annotations

import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from mainspring import extras, native
from tests.native.package import clone, run, write_setup

BUILD = """
import os, pathlib, sys
from setuptools import build_meta
folder, name = sys.argv[1:]
os.dup2(2, 1)
pathlib.Path(name).write_text(build_meta.build_wheel(folder))
"""
ASK = """
from mainspring import native
from mainspring.simulator import environment, spec
print(*(module.__file__.rsplit(".")[-1] for module in (environment, spec)), native.SIMULATOR.state())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what is in the repository, that compiles one module, with what old builds left."""
    folder = clone(tmp_path_factory.mktemp("checkout"))
    write_setup(folder, "native.SIMULATOR", "simulator/environment.py")
    for stale in ("build/lib/mainspring/stale.py", "build/native/cpython-310/core/mainspring/stale.so"):
        (folder / stale).parent.mkdir(parents=True)
        (folder / stale).write_text("")
    return folder


def wheel(checkout: Path, folder: Path, **environment: str) -> tuple[zipfile.ZipFile, str]:
    """Build a wheel of a checkout; return it, and what was said."""
    _, said = run(checkout, "-c", BUILD, str(folder), str(folder / "name"), **environment)
    return zipfile.ZipFile(folder / (folder / "name").read_text()), said


@pytest.mark.skipif(
    bool(extras.missing_compiler()) or find_spec("mypyc") is None,
    reason="mypy, a C compiler or Python.h is missing",
)
def test_a_wheel_holds_compiled_code_that_runs_and_no_experiments(checkout: Path, tmp_path: Path) -> None:
    made, _ = wheel(checkout, tmp_path)
    names = set(made.namelist())
    assert {"mainspring/cli/main.py", "mainspring/simulator/environment.py", "mainspring/py.typed"} <= names
    assert any(name.startswith("mainspring/console/page/") for name in names)
    tops = {"/".join(name.split("/")[:2]) for name in names if name.startswith("mainspring/")}
    assert "mainspring/experiments" not in tops
    assert "mainspring/stale.py" not in tops
    assert not [name for name in names if name.split("/")[0] in {"tests", "experiments", "build"}]
    assert len([name for name in names if name.endswith(".so")]) == 2, "the library and its one module"
    left = sorted(path.name for path in (checkout / "build").iterdir())
    assert left == ["lib", "native"], "it leaves nothing but what `make native` would"
    assert not str(made.filename).endswith("-none-any.whl"), "it is of one Python and platform"
    site = tmp_path / "site"
    made.extractall(site)
    out, errors = run(site, "-c", ASK)
    assert out.startswith("so py State(use=<Use.COMPILED")
    assert run(site, "-c", ASK, **{native.SWITCH: "0"})[0].startswith("py py State(use=<Use.OFF")
    (site / "mainspring/simulator/spec.py").open("a").write("# changed\n")
    assert run(site, "-c", ASK) == (out, errors) == (out, ""), "what is installed is not looked at"


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"CC": "no-such-compiler"}, "missing: the C compiler 'no-such-compiler'"),
        ({"CC": "false"}, "the C compiler failed"),
        ({native.SWITCH: "0"}, ""),
    ],
    ids=["no compiler", "it fails", "switched off"],
)
def test_otherwise_it_is_pure_and_one_line_says_so(
    checkout: Path, tmp_path: Path, environment: dict[str, str], why: str
) -> None:
    shutil.rmtree(checkout / "build/native", ignore_errors=True)
    made, said = wheel(checkout, tmp_path, **environment)
    assert str(made.filename).endswith("-py3-none-any.whl")
    assert not [name for name in made.namelist() if name.endswith(".so")]
    told = [line for line in said.splitlines() if "plain Python, at " in line]
    assert len(told) == bool(why)
    assert not why or why in told[0]
