"""`pip install '.[serve]'` in an empty environment, and what `make wheel` writes, from a fresh clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from mainspring import extras, native
from tests.native.package import clone, set_modules

pytestmark = pytest.mark.skipif(bool(extras.missing_compiler()), reason="a C compiler or Python.h is missing")
SOME = """MODULES = {
    native.CORE: ("cluster/estimates.py",),
    native.SIMULATOR: ("traces/records.py",),
    native.PATH: ("transport/channel.py",),
}
"""
"""Of each core a module that imports little, among them two that use types of numpy."""
SERVES = """
import sys
import numpy as np
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.up import Ports, cluster_config, remedies
from mainspring import Client
from mainspring.native import CORES
flags = {"cluster": {"store": "store", "run_dir": "run"}, "worker": {"realtime": False}}
config = cluster_config(None, flags, Ports(gateway=0))
with LocalCluster(make_plan(config), print) as cluster, Client(cluster.address) as client:
    result = client.infer("digits", {"data": np.zeros((1, 1, 28, 28), np.float32)}, slo="60s")
    print("answered", result["output"].size)
print(*(core.state().use.value for core in CORES))
print(*remedies([(core, core.state()) for core in CORES], config.gateway))
"""


def told(folder: Path, *command: str | Path, **environment: str) -> str:
    """Run a command in a folder; return what it said; skip if the package index was out of reach."""
    clean = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", native.SWITCH}}
    # Bytecode of all that is installed is a fifth of the work, and little of it is ever used.
    clean["PIP_COMPILE"] = "0"
    made = subprocess.run(
        list(map(str, command)), cwd=folder, env={**clean, **environment},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1_200, check=False,
    )  # fmt: skip
    unreachable = ("No matching distribution found", "NewConnectionError")
    if made.returncode and any(text in made.stdout for text in unreachable):
        pytest.skip("the package index can't be reached")
    assert made.returncode == 0, made.stdout
    return made.stdout


def serves(folder: Path, python: Path, **environment: str) -> list[str]:
    """Have what is installed serve a model; return how its cores run, and what `up` would say of that."""
    alone = folder / "alone"
    alone.mkdir()
    environment["PATH"] = str(python.parent)  # Neither gcc nor anything else of the system.
    told(alone, python, "-m", "mainspring", "zoo", "digits", "--store", "store", **environment)
    lines = told(alone, python, "-c", SERVES, **environment).splitlines()
    assert "answered 10" in lines
    return lines[-2:]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The Python of an environment that was empty before a clone was installed, and what was said of that."""
    folder = tmp_path_factory.mktemp("installed")
    source = clone(folder / "clone")
    set_modules(source, SOME)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    return python, told(source, python, "-m", "pip", "install", "--verbose", ".[serve]")


@pytest.mark.timeout(1_500)
def test_it_compiles_in_an_empty_environment_and_serves(installed: tuple[Path, str], tmp_path: Path) -> None:
    python, said = installed
    assert "plain Python" not in said
    assert "stays Python" not in said
    assert serves(tmp_path, python) == ["compiled compiled compiled", ""]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make wheel` writes in a clone.

    It takes what `make native` compiled of the same sources, and the packages of this environment.
    """
    folder = tmp_path_factory.mktemp("made")
    source = clone(folder / "clone")
    if Path(native.BUILDS).is_dir():
        shutil.copytree(native.BUILDS, source / "build/native" / Path(native.BUILDS).name)
    # Nothing is to be installed into it.
    environment = folder / "venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / "bin/python").chmod(0o755)
    for name in ("bin/pip", ".serves"):
        (environment / name).touch()
    told(source, "make", "wheel", f"VENV={environment}")
    return source / "dist"


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize(
    ("pattern", "runs", "says"),
    [
        ("*-cp3*-linux_*.whl", "compiled compiled compiled", ""),
        ("*.tar.gz", "missing missing missing", "this runs as Python: the scheduler and"),
    ],
    ids=["wheel", "sdist"],
)
def test_what_make_wheel_writes_installs_and_serves_without_a_compiler(
    made: Path, installed: tuple[Path, str], tmp_path: Path, pattern: str, runs: str, says: str
) -> None:
    (package,) = made.glob(pattern)
    # What it needs is there already: to install that again takes most of the time.
    python, _ = installed
    told(tmp_path, python, "-m", "pip", "uninstall", "--yes", "mainspring")
    nowhere = {"PATH": str(python.parent), "CC": "gcc"}
    said = told(tmp_path, python, "-m", "pip", "install", "--verbose", f"{package}[serve]", **nowhere)
    lines = [line for line in said.splitlines() if "plain Python, at" in line]
    assert len(lines) == bool(says)
    assert not lines or "missing: the C compiler 'gcc'" in lines[0]
    used, remedy = serves(tmp_path, python, CC="gcc")
    assert used == runs
    assert remedy.startswith(says)
    assert bool(remedy) == bool(says)
