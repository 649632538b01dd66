"""Builds the distribution, whose wheel has the pure cores compiled by mypyc from their unchanged source.

``python setup.py native`` compiles them for a checkout (`make native`); a wheel takes what that would make.
A module that can't be compiled stays Python, and so do the modules with classes that derive from its
classes; one line for each says why. Without a C compiler a wheel has Python's files alone, and one line says
so; ``MAINSPRING_NATIVE=0`` leaves compiling out. An editable installation does not compile, since its source
will change.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from glob import glob
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError, CompileError

ROOT = Path(__file__).resolve().parent
# A build frontend leaves it out.
sys.path.insert(0, str(ROOT))

from mainspring import extras, native  # noqa: E402

MODULES = {
    native.CORE: (
        *("cluster/**/*.py", "scheduler/**/*.py", "worker/core/**/*.py", "telemetry/lifecycles.py"),
        "transport/holes.py",
    ),
    native.SIMULATOR: (
        *("simulator/checks.py", "simulator/controller.py", "simulator/device.py"),
        "simulator/environment.py",
        *("simulator/fleet.py", "simulator/gateway.py", "simulator/graphs.py"),
        *("simulator/gateway_core.py", "simulator/outcomes.py", "simulator/slowness.py"),
        *("simulator/simulation.py", "telemetry/percentiles.py", "telemetry/samples.py"),
        *("traces/records.py", "traces/returning.py"),
    ),
    native.PATH: (
        *("controller/**/*.py", "gateway/driver.py"),
        *("gateway/local_clients.py", "gateway/memory.py", "gateway/peer_connections.py"),
        *("gateway/replies.py", "gateway/server.py", "gateway/statistics.py", "gateway/time_slices.py"),
        *("gateway/zeromq.py", "gateway/shards.py", "gateway/core/requests.py"),
        *("gateway/core/sharing.py", "gateway/core/catalog.py"),
        *(
            "gateway/core/controller_catalogs.py",
            "gateway/core/request_table.py",
            "gateway/core/sequences.py",
        ),
        *("gateway/core/state_machine.py", "gateway/core/validation.py", "gateway/grpc/access.py"),
        *("gateway/grpc/answers.py", "gateway/grpc/peers.py", "gateway/grpc/requests.py"),
        *("gateway/grpc/status.py", "gateway/grpc/taking.py", "gateway/grpc/wire.py"),
        *("gateway/http/connection.py", "gateway/http/exchange.py"),
        *("gateway/http/server.py", "gateway/http/receiver.py"),
        *("gateway/http/infer.py", "gateway/http/routes.py", "gateway/oip/request.py"),
        *("gateway/oip/response.py", "gateway/oip/parameters.py", "gateway/zeromq_listener.py"),
        *("messages/codec.py", "messages/delays.py", "messages/ids.py", "telemetry/actions.py"),
        *("telemetry/bounded.py", "transport/channel.py"),
        *("transport/controllers.py", "transport/hub.py"),
        *("transport/link.py", "transport/listener.py", "transport/slab.py", "transport/tokens.py"),
        *("worker/batches.py", "worker/executors.py", "worker/inputs.py", "worker/network.py"),
        "worker/segments.py",
    ),
}
"""What is compiled together, as patterns of files below the package."""
STRUCT = re.compile(rb"^[ \t]*class[ \t]+\w+\([^)]*\bStruct\b", re.MULTILINE)
"""Modules that define Structs stay Python: those are C already, and mypyc drops options like ``frozen``."""
MYPY = """\
[mypy]
namespace_packages = True
explicit_package_bases = True
ignore_missing_imports = True
follow_imports = silent
disable_error_code = valid-type
[mypy-numpy.*]
follow_imports = skip
"""
"""No type of numpy makes code quicker, and reading them takes longer than all else. So an alias of one is a
variable to mypyc, which is not valid as a type, and what is annotated with it is of any type. What is wrong
in a module that is only imported keeps nothing else from being compiled."""
COMPLAINT = re.compile(
    r"^(mainspring/\S+\.py):(\d+):(?:\d+:)? (?!note: |warning: )(?:error: )?(.+)", re.MULTILINE
)
"""What mypyc says of a module that it refuses."""
HIDDEN = "-fvisibility=hidden"
"""Nobody else calls what is compiled here, so that calls among it need not go through the linker's tables."""
PROCESSORS = len(os.sched_getaffinity(0))


class CannotCompile(Exception):
    """What is missing, or what went wrong."""


class Refused(CannotCompile):
    """Some modules can't be compiled; ``why`` has the reason for the path of each."""

    def __init__(self, why: dict[str, str]) -> None:
        super().__init__(next(iter(why.values())))
        self.why = why


class BuildCore(build_ext):  # type: ignore[misc]
    """Builds a library, and for each of its modules one file that names it.

    There is one C file for each module: several processors compile them side by side.
    """

    def build_extensions(self) -> None:
        """Compile and link; raise CannotCompile, `Refused` if the compiler fails at some modules alone."""
        self.compiler.compile = partial(_compile_side_by_side, self.compiler.compile)
        try:
            super().build_extensions()
        except CCompilerError as error:
            raise CannotCompile("the C compiler failed") from error


class BuildPython(build_py):  # type: ignore[misc]
    """Copies Python's files, and beside them what was compiled."""

    compiled: tuple[str, ...] = ()

    def run(self) -> None:
        """Copy them to where the wheel is made from."""
        super().run()
        for folder in self.compiled:
            leave = shutil.ignore_patterns(native.STAMP)
            shutil.copytree(folder, self.build_lib, ignore=leave, dirs_exist_ok=True)


class Compiled(Distribution):  # type: ignore[misc]
    """A distribution with compiled code, whose wheel is of one Python and platform."""

    def has_ext_modules(self) -> bool:
        """Return that it has compiled code."""
        return True


def build(core: native.Core, files: list[str], folder: Path) -> dict[str, str]:
    """Compile a core's files into ``folder/built``; return those that were left out, each with why.

    Raise CannotCompile if that leaves none, or if what is wrong is of no file.
    """
    left_out: dict[str, str] = {}
    while True:
        remaining = [path for path in files if path not in left_out]
        try:
            modules = extensions(core, remaining, folder)
            paths = [f"--build-lib={folder / 'built'}", f"--build-temp={folder / 'temporary'}"]
            _setup(["--quiet", "build_ext", f"--parallel={PROCESSORS}", *paths], ext_modules=modules)
        except Refused as refused:
            new = {path: why for path, why in refused.why.items() if path in remaining}
            new = {**relatives(new, remaining), **new}
            if not new or len(new) == len(remaining):
                raise
            left_out |= new
            shutil.rmtree(folder / "built", ignore_errors=True)
        else:
            return left_out


def relatives(left_out: Iterable[str], files: list[str]) -> dict[str, str]:
    """Return the files whose classes derive from those of files that are left out, or are their bases.

    Each has why. An object of a compiled class that derives from one that isn't crashes the process when it
    is freed; a class that isn't compiled may derive from a compiled one only if that says so, and otherwise
    ends the process at its start.
    """
    found: dict[str, str] = {}
    pending = list(left_out)
    while pending:
        path = pending.pop()
        for other in [each for each in files if each not in found and each not in left_out]:
            if _bases(other, path):
                found[other] = f"its classes derive from those of {_module(path)}"
            elif _bases(path, other) - _open_classes(other):
                found[other] = f"the classes of {_module(path)} derive from its own"
            else:
                continue
            pending.append(other)
    return found


def _bases(path: str, other: str) -> set[str]:
    """Return the classes of the other file from which those of a file derive."""
    tree, module = ast.parse(_read(path), path), _module(other)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if module in (node.module, f"{node.module}.{alias.name}")
    }
    bases = [base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    named = [ast.unparse(base).partition("[")[0] for base in bases]
    return {name.rpartition(".")[2] for name in named if name.partition(".")[0] in imported}


def _open_classes(path: str) -> set[str]:
    """Return the classes of a file from which those that aren't compiled may derive."""
    return {
        node.name
        for node in ast.walk(ast.parse(_read(path), path))
        if isinstance(node, ast.ClassDef)
        and any("allow_interpreted_subclasses=True" in ast.unparse(each) for each in node.decorator_list)
    }


def extensions(core: native.Core, files: list[str], folder: Path) -> list[Any]:
    """Translate files of a core to C files in a folder; return what setuptools is to build of them.

    Raise `Refused` with the files that mypyc refuses, or another CannotCompile with what it says.
    """
    from mypyc.build import mypycify

    config, said = folder / "mypy.ini", StringIO()
    config.write_text(MYPY, encoding="utf-8")
    try:
        with redirect_stdout(said), redirect_stderr(said):
            library, *modules = mypycify(
                [f"--config-file={config}", *files],
                opt_level="2",
                debug_level="0",
                multi_file=True,
                target_dir=str(folder / core.name),
                group_name=core.library.removesuffix("__mypyc"),
            )
    except SystemExit as error:
        why: dict[str, str] = {}
        for path, line, text in COMPLAINT.findall(said.getvalue()):
            why.setdefault(path, f"mypyc refuses line {line}: {text}")
        last = (said.getvalue().strip() or str(error)).splitlines()[-1]
        raise (Refused(why) if why else CannotCompile(f"mypyc refuses its source: {last}")) from error
    # A warning that a newer compiler has for generated code is no reason to do without it.
    flags = [flag for flag in library.extra_compile_args if flag != "-Werror"]
    library.extra_compile_args = [*flags, HIDDEN]
    for module in modules:
        module.extra_compile_args = ["-O0"]
    return [library, *modules]


def compiled_files(core: native.Core) -> list[str]:
    """Return the files that are compiled, as paths below the checkout, sorted."""
    patterns = (f"mainspring/{pattern}" for pattern in MODULES[core])
    found = {path for pattern in patterns for path in glob(pattern, recursive=True)}
    return sorted(path for path in found if path[-11:] != "__init__.py" and not STRUCT.search(_read(path)))


def read_files(files: list[str]) -> list[str]:
    """Return files of ours and all others of ours that they import, directly or not, sorted.

    Types and constants of all of them end up in the compiled code.
    """
    found, pending = set[str](), list(files)
    while pending:
        path = pending.pop()
        if path in found or not os.path.isfile(path):
            continue
        found.add(path)
        for node in ast.walk(ast.parse(_read(path), path)):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            ours = [name.replace(".", "/") for name in names if name.startswith("mainspring.")]
            pending += [f"{name}{end}" for name in ours for end in (".py", "/__init__.py")]
    return sorted(found)


def compile_here(core: native.Core) -> str:
    """Compile a core for this checkout, unless it is; return what was done, empty if nothing.

    Raise CannotCompile. A process that runs keeps what it has loaded.
    """
    files = compiled_files(core)
    os.makedirs(native.BUILDS, exist_ok=True)
    with (
        open(Path(native.BUILDS, "lock"), "w") as lock,
        tempfile.TemporaryDirectory(dir=native.BUILDS) as name,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        goal, folder = Path(core.folder), Path(name)
        made = _stamp(core, files, native.left_out(goal, core.name))
        if goal.is_dir() and (goal / native.STAMP).read_text(encoding="utf-8") == made:
            return ""
        missing = extras.missing_compiler()
        if find_spec("mypyc") is None:
            missing.insert(0, "mypy (it is of the extra serve)")
        if missing:
            raise CannotCompile(f"missing: {'; '.join(missing)}")
        before = _stamp(core, files)
        left_out = {_module(path): why for path, why in build(core, files, folder).items()}
        if before != _stamp(core, files):
            raise CannotCompile("its source was changed meanwhile")
        native.write_left_out(folder / "built", core.name, left_out)
        (folder / "built" / native.STAMP).write_text(_stamp(core, files, left_out), encoding="utf-8")
        if goal.is_dir():
            goal.rename(folder / "old")
        (folder / "built").rename(goal)
    count = len(files) - len(left_out)
    return f"compiled {count} modules in {time.monotonic() - began:.0f} s: {core.purpose}"


def _stamp(core: native.Core, files: list[str], left_out: Iterable[str] = ()) -> str:
    """Return the stamp of a core of these files without modules that are left out."""
    modules = [module for module in map(_module, files) if module not in left_out]
    return native.stamp([core.library, *modules], ["setup.py", *read_files(files)])


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def compiled_here(cores: Iterable[native.Core], *, quiet: bool = True) -> list[native.Core]:
    """Compile cores for this checkout unless they are; say what stays Python and why; return the others."""
    compiled, failed = [], dict[str, list[native.Core]]()
    for core in cores:
        try:
            done = compile_here(core)
        except (CannotCompile, OSError, SyntaxError) as error:
            failed.setdefault(str(error), []).append(core)
            continue
        compiled.append(core)
        if done or not quiet:
            print(f"native: {done or f'{core.purpose}: compiled already'}")
        for module, why in native.left_out(core.folder, core.name).items():
            print(f"mainspring: {module} stays Python: {why}", file=sys.stderr)
    for why, alike in failed.items():
        slow = "; ".join(f"{core.purpose}: plain Python, at {core.cost}" for core in alike)
        print(f"mainspring: {slow}: {why}", file=sys.stderr)
    return compiled


def compile_cores(arguments: list[str]) -> None:
    """Compile what the arguments name for this checkout; what can't be is said, and runs as Python."""
    parser = argparse.ArgumentParser("python setup.py native", description=compile_cores.__doc__)
    names = [core.name for core in MODULES]
    chosen = f"{' or '.join(names)}; all by default"
    parser.add_argument("cores", nargs="*", choices=[*names, []], metavar="CORE", help=chosen)
    parser.add_argument("--quiet", action="store_true", help="say nothing if nothing is to be done")
    options = parser.parse_args(arguments)
    if native.switched_off():
        print(f"native: {native.SWITCH}=0: everything runs as Python")
        return
    chosen_cores = [core for core in MODULES if core.name in (options.cores or names)]
    compiled_here(chosen_cores, quiet=options.quiet)


def main() -> None:
    """Do what a build frontend asks for; only a wheel is compiled for."""
    wheel = "bdist_wheel" in sys.argv and not native.switched_off()
    BuildPython.compiled = tuple(core.folder for core in (compiled_here(MODULES) if wheel else []))
    settings: dict[str, Any] = {"distclass": Compiled} if BuildPython.compiled else {}
    with tempfile.TemporaryDirectory() as folder:
        # A folder of its own: nothing that an earlier build left gets in.
        _setup(options={"build": {"build_base": folder}}, **settings)


def _setup(arguments: list[str] | None = None, **settings: Any) -> None:
    """Run setuptools, by default with the process's own arguments."""
    given = {} if arguments is None else {"script_args": arguments}
    setup(cmdclass={"build_ext": BuildCore, "build_py": BuildPython}, **given, **settings)


def _compile_side_by_side(compile_all: Any, sources: list[str], **options: Any) -> list[str]:
    """Compile C files as ``compile_all`` does, several at a time; return their objects in order.

    Raise `Refused` if it fails at the files of some modules alone.
    """
    with ThreadPoolExecutor(PROCESSORS) as pool:
        made = list(pool.map(lambda source: _compiled_or_none(compile_all, source, options), sources))
    failed = [Path(source).stem for source, paths in zip(sources, made, strict=True) if paths is None]
    modules = [stem.removeprefix("__native_") for stem in failed if stem.startswith("__native_mainspring___")]
    if failed and len(modules) == len(failed) < len(sources) - 1:
        raise Refused({f"{name.replace('___', '/')}.py": "the C compiler failed" for name in modules})
    if failed:
        raise CompileError("the C compiler failed")
    return [path for paths in made for path in paths or []]


def _compiled_or_none(compile_all: Any, source: str, options: dict[str, Any]) -> list[str] | None:
    try:
        return list(compile_all([source], **options))
    except CompileError:
        return None


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:2] == ["native"]:
        compile_cores(sys.argv[2:])
    else:
        main()
