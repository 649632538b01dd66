"""Files that a request passes: `python -m mainspring.experiments.request_path` starts a cluster and looks.

The rule: a file of ours is on the way if one of its functions runs, or one of its structs is created, between
a client's call and the end of what follows the reply (`structs_on_path`).

Every process of a local cluster with the CPU engine notes the lines of ours that it runs, as Python, for
compiled code can't be watched. Requests are sent over ZeroMQ and HTTP, to a model that is resident and to one
that has to be loaded first.

What the processes run without a request, such as timers, is counted apart: a file of theirs is on the way if
a line of it runs in none of `QUIET_ROUNDS` stretches of time without a request, and in each of `ROUNDS` with
one;
or if it is of `transport`, which carries every message alike. A LOAD alone is what controller and worker run
beyond that, and beyond requests to a model that is resident.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import msgspec
import numpy as np
import onnx
import typer

from mainspring.client.client import Client
from mainspring.experiments.bench.repository import COLUMNS, net

ROOT = Path(__file__).resolve().parent.parent
NOT_PRODUCT = ("tests", "experiments", ".venv")
MESSAGES = "mainspring.messages"
STRUCTS = {"Struct", "NamedTuple"}


def passed(ran: Iterable[tuple[str, int]]) -> set[str]:
    """Return the product's files that lines (file, number) pass, as paths below the repository's root."""
    lines: dict[str, set[int]] = {}
    for name, number in ran:
        path = ours(name)
        if path is not None:
            lines.setdefault(path, set()).add(number)
    created = {file for path, numbers in lines.items() for file in _created(path, numbers)}
    return lines.keys() | created


def ours(name: str) -> str | None:
    """Return a file of the product below the repository's root, None for any other."""
    if not name.startswith("/"):
        return None  # Code that was generated.
    try:
        path = Path(name).resolve().relative_to(ROOT)
    except ValueError:
        return None
    return None if path.parts[0] in NOT_PRODUCT else path.as_posix()


def _created(path: str, numbers: set[int]) -> Iterator[str]:
    names = _imported(path)
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and node.lineno in numbers and isinstance(node.func, ast.Name):
            wanted = [node.func.id]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _ran(node, numbers):
            wanted = [name for name in _taken(node) if names.get(name, ("",))[0].startswith(MESSAGES)]
        else:
            continue
        for name in wanted:
            file = None if name not in names else _file_of_struct(*names[name])
            if file is not None:
                yield file


def _ran(function: ast.FunctionDef | ast.AsyncFunctionDef, numbers: set[int]) -> bool:
    first = function.body[0]
    return any(number in numbers for number in range(first.lineno, (function.end_lineno or first.lineno) + 1))


def _taken(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        if argument.annotation is not None:
            yield from (node.id for node in ast.walk(argument.annotation) if isinstance(node, ast.Name))


def _file_of_struct(module: str, name: str) -> str | None:
    path = _path(module)
    if path is None:
        return None
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return path if _is_struct(path, node) else None
    further = _imported(path).get(name)
    return None if further is None else _file_of_struct(*further)


def _is_struct(path: str, node: ast.ClassDef) -> bool:
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return True
    bases = [
        base.id if isinstance(base, ast.Name) else ast.unparse(base).rpartition(".")[2] for base in node.bases
    ]
    here = {each.name: each for each in _tree(path).body if isinstance(each, ast.ClassDef)}
    for base in bases:
        if base in STRUCTS or (base in here and base != node.name and _is_struct(path, here[base])):
            return True
        further = _imported(path).get(base)
        if further is not None and _file_of_struct(*further) is not None:
            return True
    return False


@functools.cache
def _imported(path: str) -> dict[str, tuple[str, str]]:
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mainspring.")
        for alias in node.names
    }


def _path(module: str) -> str | None:
    stem = module.removeprefix("mainspring.").replace(".", "/")
    return next((path for path in (f"{stem}.py", f"{stem}/__init__.py") if (ROOT / path).is_file()), None)


@functools.cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


RECORDER = """
import os, sys, threading, time
folder, root, ran = os.environ["RAN_FOLDER"], os.environ["RAN_ROOT"], set()

def line(frame, event, argument):
    ran.add((frame.f_code.co_filename, frame.f_lineno))
    return line

def call(frame, event, argument):
    name = frame.f_code.co_filename
    if not name.startswith(root) or "/.venv/" in name:
        return None
    return line(frame, event, argument)

def watch():
    seen = ""
    while True:
        time.sleep(0.02)
        try:
            asked = open(os.path.join(folder, "asked")).read()
        except OSError:
            continue
        if asked != seen:
            seen = asked
            lines = list(ran)
            ran.clear()
            path = os.path.join(folder, f"{asked}.{os.getpid()}")
            with open(path + "~", "w") as file:
                print(" ".join(sys.argv), file=file)
                for name, number in lines:
                    print(name, number, sep="\\t", file=file)
            os.replace(path + "~", path)

threading.Thread(target=watch, daemon=True).start()
threading.settrace(call)
sys.settrace(call)
"""
MODELS = ("first", "second")
STORE = ("--store", "store")
Lines = dict[str, set[tuple[str, int]]]
"""The lines (file, number) that ran, by the kind of process."""
TRANSPORT = "/transport/"
ROUNDS = 4
QUIET_ROUNDS = 12
"""Stretches of time without a request: enough for each timer to run in one."""
SETTLED_S = 0.3


if TYPE_CHECKING:
    from _typeshed import TraceFunction


class Watched:
    """A cluster whose processes note which lines they run; it serves `MODELS` on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        mainspring = [sys.executable, "-m", "mainspring"]
        here = {**os.environ, "PYTHONPATH": str(ROOT), "MAINSPRING_NATIVE": "0"}
        for number, model in enumerate(MODELS):
            onnx.save(net(number + 1.0), folder / f"{model}.onnx")
            compile_it = [*mainspring, "compile", f"{model}.onnx", "--name", model, *STORE]
            subprocess.run(compile_it, cwd=folder, env=here, check=True, stdout=subprocess.DEVNULL)
        (folder / "sitecustomize.py").write_text(RECORDER)
        watched = {"RAN_FOLDER": str(folder), "RAN_ROOT": str(ROOT), "PYTHONPATH": f"{folder}:{ROOT}"}
        ports = ["--port", "0", "--console-port", "off", "--grpc-port", "off"]
        self._process = subprocess.Popen(
            [*mainspring, "up", *STORE, "--pages", "8", *ports],
            cwd=folder,
            env=here | watched,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        self.address = ready.split()[1]
        found = re.search(r"http://\S+", ready + self._process.stdout.readline())
        self.http = "" if found is None else found[0]

    def during(self, act: Callable[[], object]) -> Lines:
        """Return the lines of ours that each kind of process runs while something is done."""
        self._ask()
        act()
        time.sleep(SETTLED_S)
        return self._ask()

    def close(self) -> None:
        """End the cluster."""
        self._process.terminate()
        self._process.wait()

    def _ask(self) -> Lines:
        self._count += 1
        (self._folder / "asked~").write_text(str(self._count))
        (self._folder / "asked~").replace(self._folder / "asked")
        time.sleep(0.5)
        found: Lines = {}
        for path in self._folder.glob(f"{self._count}.*"):
            if not path.name.endswith("~"):
                argv, *lines = path.read_text().splitlines()
                ran = found.setdefault(kind_of(argv), set())
                ran.update((name, int(number)) for name, number in (line.split("\t") for line in lines))
        found.pop("launcher", None)
        return found


class Own:
    """Recorder of the client's lines that this process runs; the client's thread begins meanwhile."""

    def __init__(self) -> None:
        self._ran: set[tuple[str, int]] = set()
        threading.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        mine = frame.f_code.co_filename.startswith(str(ROOT / "mainspring"))
        return self._line(frame, event, argument) if mine else None

    def _line(self, frame: FrameType, _event: str, _argument: Any) -> TraceFunction:
        self._ran.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def called(self, act: Callable[[], object]) -> set[str]:
        """Return which files this process passes while something is done."""
        self._ran.clear()
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            act()
        finally:
            sys.settrace(before)
        return passed(self._ran.copy())


def kind_of(argv: str) -> str:
    """Return what a process is by its job file, such as ``worker``."""
    found = re.search(r"(gateway|controller|worker)[-0-9a-z]*\.json", argv)
    return "launcher" if found is None else found[1]


def beyond(lines: Lines, others: Sequence[Lines]) -> dict[str, set[str]]:
    """Return the files that each kind of process passes, by lines that run in none of the others."""
    found = {}
    for kind, ran in lines.items():
        always = set[tuple[str, int]]().union(*(other.get(kind, set()) for other in others))
        found[kind] = passed([line for line in ran if line not in always or TRANSPORT in line[0]])
    return found


def common(rounds: Sequence[Lines]) -> Lines:
    """Return the lines that run each time, by the kind of process."""
    return {kind: set.intersection(*(each.get(kind, set()) for each in rounds)) for kind in rounds[0]}


def paths(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return, for each kind of request, the files that it passes in each kind of process."""
    own = Own()
    cluster = Watched(folder)
    try:
        with Client(cluster.address) as client:
            rows = {"x": np.zeros((1, COLUMNS), np.float32)}
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, COLUMNS], "data": [0.0] * COLUMNS}
            body = {"inputs": [tensor]}
            post = UrlRequest(f"{cluster.http}/v2/models/first/infer", msgspec.json.encode(body))

            def over_zeromq(model: str) -> None:
                client.infer(model, rows, slo_ms=10_000)

            def over_http() -> None:
                urlopen(post).read()

            over_zeromq("first")
            over_http()
            quiet = [cluster.during(lambda: None) for _ in range(QUIET_ROUNDS)]
            resident = [cluster.during(partial(over_zeromq, "first")) for _ in range(ROUNDS)]
            http = [cluster.during(over_http) for _ in range(ROUNDS)]
            loading = cluster.during(partial(over_zeromq, "second"))
            mine = own.called(partial(over_zeromq, "first"))
    finally:
        cluster.close()
    alone = beyond(loading, [*quiet, *resident])
    return {
        "zeromq": {**beyond(common(resident), quiet), "client": mine},
        "http": beyond(common(http), quiet),
        "zeromq, with a LOAD": {**beyond(loading, quiet), "client": mine},
        "a LOAD alone": {kind: alone[kind] for kind in ("controller", "worker")},
        "zeromq, with what always runs": {**beyond(resident[0], ()), "client": mine},
        "http, with what always runs": beyond(http[0], ()),
    }


def lines_of(files: set[str]) -> int:
    """Return how many lines files have together."""
    return sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files)


def main(files: bool = typer.Option(False, help="Print each file.")) -> None:
    """Print which files each kind of request passes."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = paths(folder)
    for name, kinds in found.items():
        every = set[str]().union(*kinds.values())
        shares = ", ".join(f"{kind} {len(each)}" for kind, each in sorted(kinds.items()))
        print(f"{name}: {len(every)} files, {lines_of(every):,} lines ({shares})")
        if files:
            for kind, each in sorted(kinds.items()):
                print(f"  {kind}:", *sorted(each), sep="\n    ")


if __name__ == "__main__":
    typer.run(main)
