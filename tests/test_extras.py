"""What a bare installation needs, what each extra brings, and the command that installs it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from mainspring import extras, native
from mainspring.native import State, Use

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CLIENT = {"msgspec", "numpy", "zmq"}

WITHOUT = """
import importlib.util, sys
real = importlib.util.find_spec
def asked(name, package=None):
    try:
        return real(name, package)
    except ModuleNotFoundError:
        return None
importlib.util.find_spec = asked
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name[0] != "_" and name.partition(".")[0] not in {*allowed, *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
allowed = %r
sys.meta_path.insert(0, Absent())
"""


class Installed(Distribution):
    """An installation that came from a place, with requirements."""

    def __init__(self, origin: Mapping[str, object] | None) -> None:
        self._origin = origin

    def read_text(self, filename: str) -> str | None:
        if filename == extras.ORIGIN:
            return None if self._origin is None else json.dumps(self._origin)
        if filename == "METADATA":
            return (
                "Name: mainspring\nVersion: 1\nRequires-Dist: numpy>=1.26\n"
                'Requires-Dist: pyarrow>=15; extra == "parquet"\n'
                "Requires-Dist: tritonclient[grpc,http]>=2.70 ; extra == 'dev'\n"
            )
        return None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


def run(modules: set[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds these modules and those of Python alone."""
    code = WITHOUT % ({*modules, "mainspring", "pip"},) + program
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=False, cwd=ROOT)


def names(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements name."""
    return {re.split(r"[\[<>=!~ ;]", each, maxsplit=1)[0].lower() for each in requirements}


def test_the_base_is_the_client() -> None:
    assert names(PROJECT["dependencies"]) == {"msgspec", "numpy", "pyzmq"}
    program = (
        "import mainspring\n"
        "from mainspring import *\n"
        "import mainspring.client.repository\n"
        "ours = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(*sorted(ours - {'__main__', 'mainspring', 'cython_runtime'}))\n"
        "print(*sorted(name for name in sys.modules if name.count('.') == 1 and name[:10] == 'mainspring'))\n"
    )
    done = run(CLIENT, program)
    assert done.returncode == 0, done.stderr
    others, folders = done.stdout.splitlines()
    assert {name for name in others.split() if not name.startswith("_")} <= CLIENT
    allowed = {"client", "messages", "native", "transport"}
    assert {name.removeprefix("mainspring.") for name in folders.split()} <= allowed


def test_importing_the_package_imports_no_other() -> None:
    done = run(set(), "import mainspring\nprint('numpy' in sys.modules, 'zmq' in sys.modules)\n")
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("infer", "m"), ()])
def test_the_client_alone_says_how_to_get_the_command_line(arguments: tuple[str, ...]) -> None:
    done = run(CLIENT, "from mainspring.__main__ import main\nmain()\n", *arguments)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert extras.command("cli") in done.stderr
    assert extras.command("serve") in done.stderr


def test_the_client_alone_says_its_version() -> None:
    done = run(CLIENT, "from mainspring.__main__ import main\nmain()\n", "--version")
    assert done.stdout.startswith("mainspring ")
    assert done.returncode == 0


def modules_of(distributions: set[str]) -> set[str]:
    """Return the top-level modules of distributions and of all that they depend on."""
    found, pending = set[str](), set(distributions)
    while pending:
        name = pending.pop().replace("_", "-")
        found.add(name)
        with contextlib.suppress(PackageNotFoundError):
            needed = [each for each in requires(name) or [] if "extra ==" not in each]
            pending |= names(needed) - found
    brought = packages_distributions()
    return {
        module
        for module, owners in brought.items()
        if any(owner.lower().replace("_", "-") in found for owner in owners)
    }


def test_the_command_line_of_a_remote_cluster_needs_no_server() -> None:
    program = "from mainspring.__main__ import main\nmain()\n"
    there = modules_of(names(EXTRAS["cli"]) | names(PROJECT["dependencies"]))
    assert run(there, program, "--help").returncode == 0
    impatient = "import functools\nfrom mainspring.client import client\n"
    impatient += "client.Client = functools.partial(client.Client, connect_timeout_s=0.1)\n"
    nobody = run(there, impatient + program, "status", "--address", "tcp://127.0.0.1:9")
    assert "127.0.0.1:9" in nobody.stderr
    serving = run(there, program, "zoo", "squeezenet")
    assert serving.returncode == 1
    assert serving.stderr.startswith("mainspring: this needs the Python module ")
    assert serving.stderr.strip().endswith(extras.command("serve"))


def test_dev_holds_the_other_extras() -> None:
    for extra in ("cli", "serve", "tvm", "parquet", "tracing", "docs"):
        assert names(EXTRAS[extra]) <= names(EXTRAS["dev"]), extra
    assert names(EXTRAS["cli"]) <= names(EXTRAS["serve"])


def test_each_extra_has_the_modules_that_its_packages_bring() -> None:
    told = {module: extra for extra, modules in extras.MODULES.items() for module in modules}
    assert told.keys().isdisjoint(CLIENT)
    brought = packages_distributions()
    wrong = [
        (module, extra)
        for module, extra in told.items()
        if module in brought
        and not names([name.replace("_", "-") for name in brought[module]]) & names(EXTRAS[extra])
        and module not in {"google", "opentelemetry"}
    ]
    assert not wrong
    assert told.keys() >= {"google", "opentelemetry"}, "namespaces that several distributions share"


def test_a_folder_is_named_with_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    url = folder.as_uri()
    plain = extras.command_for("serve", Installed({"url": url, "dir_info": {}}), tmp_path)
    assert shlex.split(plain)[-1] == f"{folder}[serve]"
    linked = extras.command_for("serve", Installed({"url": url, "dir_info": {"editable": True}}), tmp_path)
    assert shlex.split(linked)[-2:] == ["-e", f"{folder}[serve]"]


def test_a_revision_is_named_with_its_address(tmp_path: Path) -> None:
    origin = {"url": "https://example.org/m.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    told = extras.command_for("serve", Installed(origin), tmp_path)
    assert shlex.split(told)[-1] == "mainspring[serve] @ git+https://example.org/m.git@abc"


def test_of_an_unknown_origin_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "mainspring" / "extras.py"))
    for origin in (None, {"url": "file:///gone", "dir_info": {}}):
        told = extras.command_for("parquet", Installed(origin), tmp_path)
        assert shlex.split(told)[-1] == "pyarrow>=15"
        assert "mainspring" not in told.replace(sys.prefix, "")
    assert "tritonclient[grpc,http]>=2.70" in extras.command_for("dev", Installed(None), tmp_path)


def test_pip_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pip").write_text("#!/bin/sh\n")
    (folder / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert extras.command_for("serve", None, tmp_path).startswith("pip install -e ")
    other = extras.command_for("serve", None, tmp_path / "other")
    assert shlex.split(other)[:4] == [sys.executable, "-m", "pip", "install"]


def test_what_compiles_the_cores_is_named_as_it_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "mainspring" / "extras.py"))
    monkeypatch.setattr(extras, "_installed", lambda: Installed({"url": tmp_path.as_uri(), "dir_info": {}}))
    again = shlex.split(extras.compile_command())
    assert again[-3:] == ["--force-reinstall", "--no-deps", f"{tmp_path}[serve]"]
    (tmp_path / "setup.py").write_text("")
    assert shlex.split(extras.compile_command())[-2:] == [str(tmp_path / "setup.py"), "native"]
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert extras.compile_command() == f"make -C {tmp_path} native"
    monkeypatch.chdir(tmp_path)
    assert extras.compile_command() == "make native"


def test_all_that_compiling_misses_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    told = native.how_to_compile(State(Use.MISSING, "not compiled"))
    for wanted in ("'no-such-compiler' (apt-get install gcc", "python3-dev", extras.compile_command()):
        assert wanted in told
    assert native.how_to_compile(State(Use.OFF, "")) == "unset MAINSPRING_NATIVE"


def test_nothing_names_a_package_of_an_index_that_is_not_ours() -> None:
    taken = re.compile(r"install [^\n]*['\" ]mainspring(\[|['\"]?$)")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    wrong = [
        path
        for path in listed.splitlines()
        if Path(path).suffix in {".py", ".md", ".toml", ".yml"}
        and path != "CHANGELOG.md"
        and (ROOT / path).is_file()
        and taken.search((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not wrong, f"mainspring on an index is a name that anybody may have: {wrong}"
