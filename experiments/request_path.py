"""Which files a request passes: `python -m mainspring.experiments.request_path` starts a cluster and looks.

The rule: a file of ours is on the way if one of its functions runs, or one of its structs is created, between
a client's call and the end of what follows the reply (`structs_on_path`).

Every process of a local cluster with the CPU engine notes the lines of ours that it runs, as Python, for
compiled code can't be watched. Requests are sent over ZeroMQ and HTTP, to a model that is resident and to one
that has to be loaded first. What the processes always run, such as timers, counts as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
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
from mainspring.experiments.bench.repository_models import COLUMNS, net
from mainspring.experiments.structs_on_path import ROOT, passed

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
SETTLED_S = 0.3
"""How long what follows a reply may take, such as the result's way to the controller."""


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

    def called(self, act: Callable[[], object]) -> dict[str, set[str]]:
        """Return which files each process calls while something is done, by the process's kind."""
        self._ask()
        act()
        time.sleep(SETTLED_S)
        return self._ask()

    def close(self) -> None:
        """End the cluster."""
        self._process.terminate()
        self._process.wait()

    def _ask(self) -> dict[str, set[str]]:
        self._count += 1
        (self._folder / "asked~").write_text(str(self._count))
        (self._folder / "asked~").replace(self._folder / "asked")
        time.sleep(0.5)
        files: dict[str, set[str]] = {}
        for path in self._folder.glob(f"{self._count}.*"):
            if not path.name.endswith("~"):
                argv, *lines = path.read_text().splitlines()
                ran = [(name, int(number)) for name, number in (line.split("\t") for line in lines)]
                files.setdefault(kind_of(argv), set()).update(passed(ran))
        return files


class Own:
    """What this process runs of the client, whose thread begins while this watches."""

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
        return passed(self._ran)


def kind_of(argv: str) -> str:
    """Return what a process is by its job file, such as ``worker``."""
    found = re.search(r"(gateway|controller|worker)[-0-9a-z]*\.json", argv)
    return "launcher" if found is None else found[1]


def paths(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return, for each kind of request, the files that it passes in each kind of process."""
    own = Own()
    cluster = Watched(folder)
    found: dict[str, dict[str, set[str]]] = {}
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
            for name, act in (
                ("zeromq", partial(over_zeromq, "first")),
                ("http", over_http),
                ("zeromq, with a LOAD", partial(over_zeromq, "second")),
            ):
                mine: set[str] = set()

                def once(act: Callable[[], None] = act, mine: set[str] = mine) -> None:
                    mine |= own.called(act)

                found[name] = {**cluster.called(once), "client": mine}
                found[name].pop("launcher", None)
    finally:
        cluster.close()
    return found


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
