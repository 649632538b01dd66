"""Builds the distribution, whose wheel has the pure cores compiled by mypyc from their unchanged source.

``python setup.py native`` compiles them for a checkout (`make native`). Without the tools that this takes, a
wheel has Python's files alone, and one line says so; ``MAINSPRING_NATIVE=0`` leaves compiling out. An
editable installation does not compile, since its source will change.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError

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
        *("simulator/fleet.py", "simulator/gateway.py", "simulator/outcomes.py", "simulator/slowness.py"),
        "simulator/gateway_core.py",
        *("simulator/simulation.py", "telemetry/percentiles.py", "telemetry/samples.py"),
        *("telemetry/aggregates.py", "traces/records.py", "traces/returning.py"),
    ),
    native.PATH: (
        *("controller/**/*.py", "telemetry/actions.py", "telemetry/bounded.py", "telemetry/histograms.py"),
        *("transport/channel.py", "transport/hub.py", "transport/link.py", "transport/listener.py"),
        *("transport/session.py", "transport/slab.py"),
        *("transport/precise.py", "messages/codec.py", "messages/delays.py", "messages/ids.py"),
        *("gateway/bounds.py", "gateway/delays.py", "gateway/driver.py"),
        *("gateway/local_clients.py", "gateway/memory.py", "gateway/peer_connections.py"),
        "gateway/shared.py",
        *("gateway/server.py", "gateway/statistics.py", "gateway/time_slices.py"),
        *("gateway/uploads.py", "gateway/zeromq.py", "gateway/core/requests.py", "gateway/core/sharing.py"),
        *("gateway/core/catalog.py", "gateway/core/timing.py", "gateway/core/told.py"),
        *("gateway/core/observers.py", "gateway/core/state_machine.py", "gateway/core/validation.py"),
        *("gateway/grpc/access.py", "gateway/grpc/answers.py", "gateway/grpc/peers.py"),
        *("gateway/grpc/requests.py", "gateway/grpc/status.py", "gateway/grpc/taking.py"),
        *("gateway/grpc/wire.py", "gateway/shards.py", "gateway/http/connection.py"),
        *(
            "gateway/http/cors.py",
            "gateway/http/exchange.py",
            "gateway/http/half_closed.py",
            "gateway/http/server.py",
        ),
        *("gateway/http/host.py", "gateway/http/infer.py", "gateway/http/inlet.py"),
        *("gateway/http/reading.py", "gateway/http/receiver.py", "gateway/http/routes.py"),
        *("gateway/http/wire.py", "gateway/oip/request.py", "gateway/oip/response.py"),
        "gateway/oip/parameters.py",
        *("worker/committing.py", "worker/executors.py", "worker/inputs.py", "worker/network.py"),
        *("worker/outbox.py", "worker/overruns.py", "worker/segments.py", "worker/staging.py"),
    ),
}
"""What is compiled together, as patterns of files below the package."""
STRUCT = re.compile(rb"^[ \t]*class[ \t]+\w+\([^)]*\bStruct\b", re.MULTILINE)
"""Modules that define Structs stay Python: those are C already, and mypyc drops options like ``frozen``."""
TOOLS = ("mypy>=1.13,<3", "msgspec>=0.19")
"""What compiling needs beside setuptools: the second for the types that the cores take from it."""
MYPY = """\
[mypy]
namespace_packages = True
explicit_package_bases = True
ignore_missing_imports = True
disable_error_code = valid-type
[mypy-numpy.*]
follow_imports = skip
"""
"""No type of numpy makes code quicker, and reading them takes longer than all else. So an alias of one is a
variable to mypyc, which is not valid as a type, and what is annotated with it is of any type."""
HIDDEN = "-fvisibility=hidden"
"""Nobody else calls what is compiled here, so that calls among it need not go through the linker's tables."""
PROCESSORS = os.cpu_count() or 1


class CannotCompile(Exception):
    """What is missing, or what went wrong."""


class BuildCores(build_ext):  # type: ignore[misc]
    """Builds all or nothing. One C file for each module: several processors compile them side by side."""

    def run(self) -> None:
        """Compile and link; if that fails, raise CannotCompile, but for a wheel, which goes without."""
        try:
            super().run()
        except CCompilerError as error:
            wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
            if wheel is None:
                raise CannotCompile("the C compiler failed") from error
            _say_pure("the C compiler failed")
            for made in glob(f"{self.build_lib}/**/*.so", recursive=True):
                os.unlink(made)
            self.distribution.ext_modules = []
            wheel.root_is_pure = True

    def build_extensions(self) -> None:
        """Build a library, and for each of its modules one file that names it."""
        self.compiler.compile = partial(_compile_side_by_side, self.compiler.compile)
        super().build_extensions()


def extensions(core: native.Core, folder: Path) -> list[Any]:
    """Translate a core to C files in a folder; return what setuptools is to build of them.

    Raise CannotCompile if that fails; mypyc has said why.
    """
    from mypyc.build import mypycify

    config = folder / "mypy.ini"
    config.write_text(MYPY, encoding="utf-8")
    try:
        library, *modules = mypycify(
            [f"--config-file={config}", *compiled_files(core)],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir=str(folder / core.name),
            group_name=core.library.removesuffix("__mypyc"),
        )
    except SystemExit as error:
        raise CannotCompile("mypyc refuses its source") from error
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
    modules = [path.removesuffix(".py").replace("/", ".") for path in files]
    os.makedirs(native.BUILDS, exist_ok=True)
    with (
        open(Path(native.BUILDS, "lock"), "w") as lock,
        tempfile.TemporaryDirectory(dir=native.BUILDS) as name,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        stamp = native.stamp([core.library, *modules], ["setup.py", *read_files(files)])
        goal, built = Path(core.folder), Path(name, "built")
        if goal.is_dir() and (goal / native.STAMP).read_text(encoding="utf-8") == stamp:
            return ""
        _check_tools()
        arguments = ["--quiet", "build_ext", f"--build-lib={built}", f"--build-temp={name}"]
        _setup(extensions(core, Path(name)), arguments)
        if stamp != native.stamp([core.library, *modules], ["setup.py", *read_files(files)]):
            raise CannotCompile("its source was changed meanwhile")
        (built / native.STAMP).write_text(stamp, encoding="utf-8")
        if goal.is_dir():
            goal.rename(Path(name, "old"))
        built.rename(goal)
    return f"compiled {len(modules)} modules in {time.monotonic() - began:.0f} s: {core.purpose}"


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
    for core in (core for core in MODULES if core.name in (options.cores or names)):
        try:
            done = compile_here(core)
        except (CannotCompile, OSError, SyntaxError) as error:
            print(f"native: {core.purpose}: plain Python, at {core.cost}: {error}", file=sys.stderr)
        else:
            if done or not options.quiet:
                print(f"native: {done or f'{core.purpose}: compiled already'}")


def main() -> None:
    """Do what a build frontend asks for; only a wheel is compiled for."""
    with tempfile.TemporaryDirectory() as folder:
        modules: list[Any] = []
        tools = [] if native.switched_off() or extras.missing_compiler() else TOOLS
        if "bdist_wheel" in sys.argv and not native.switched_off():
            try:
                _check_tools()
                modules = [each for core in MODULES for each in extensions(core, Path(folder))]
            except CannotCompile as error:
                _say_pure(str(error))
        # A folder of its own: nothing that an earlier build left gets in.
        _setup(modules, options={"build": {"build_base": folder}}, setup_requires=tools)


def _setup(modules: list[Any], arguments: list[str] | None = None, **settings: Any) -> None:
    """Run setuptools, by default with the process's own arguments."""
    options = {"build_ext": {"parallel": PROCESSORS}, **settings.pop("options", {})}
    given = {} if arguments is None else {"script_args": arguments}
    setup(ext_modules=modules, cmdclass={"build_ext": BuildCores}, options=options, **given, **settings)


def _check_tools() -> None:
    """Raise CannotCompile with what is missing of what compiling needs, and how to get it."""
    missing = extras.missing_compiler()
    if find_spec("mypyc") is None:
        missing.insert(0, "mypy (it is of the extra serve)")
    if missing:
        raise CannotCompile(f"missing: {'; '.join(missing)}")


def _say_pure(why: str) -> None:
    """Say in one line what it costs that a wheel has Python's files alone."""
    print(f"mainspring: {native.CORE.purpose}: plain Python, at {native.CORE.cost}: {why}", file=sys.stderr)


def _compile_side_by_side(compile_all: Any, sources: list[str], **options: Any) -> list[str]:
    """Compile C files as ``compile_all`` does, several at a time; return their objects in order."""
    with ThreadPoolExecutor(PROCESSORS) as pool:
        made = pool.map(lambda source: compile_all([source], **options), sources)
        return [path for paths in made for path in paths]


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:2] == ["native"]:
        compile_cores(sys.argv[2:])
    else:
        main()
