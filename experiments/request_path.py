"""Which files a request passes: `python -m mainspring.experiments.request_path` starts a cluster and looks.

Every process of a local cluster notes the files of ours whose functions it calls, as Python, for compiled
code can't be watched. Requests are sent over ZeroMQ and HTTP, to a model that is resident and to one that has
to be loaded first. What the processes call while one is under way is its path, with what they always call.
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
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import msgspec
import numpy as np
import typer

from mainspring.client.client import Client

ROOT = Path(__file__).resolve().parent.parent
RECORDER = """
import os, sys, threading, time
folder, called = os.environ["CALLED_FOLDER"], set()

def note(frame, event, argument):
    if event == "call":
        called.add(frame.f_code.co_filename)

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
            files = list(called)
            called.clear()
            path = os.path.join(folder, f"{asked}.{os.getpid()}")
            with open(path + "~", "w") as file:
                file.write("\\n".join([" ".join(sys.argv), *files]))
            os.replace(path + "~", path)

threading.Thread(target=watch, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
"""
PROFILES = """model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms
first,4,4,20,2,2
second,4,4,20,2,2
"""
SETTLED_S = 0.3
"""How long what follows a reply may take, such as the result's way to the controller."""


class Watched:
    """A cluster whose processes note what they call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        (folder / "sitecustomize.py").write_text(RECORDER)
        (folder / "profiles.csv").write_text(PROFILES)
        environment = {
            **os.environ,
            "CALLED_FOLDER": str(folder),
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "MAINSPRING_NATIVE": "0",
        }
        command = [
            sys.executable,
            "-m",
            "mainspring",
            "up",
            "--engine",
            "emulated",
            "--profiles",
            "profiles.csv",
        ]
        self._process = subprocess.Popen(
            [
                *command,
                "--engine",
                "emulated",
                "--profiles",
                "profiles.csv",
                "--pages",
                "8",
                "--port",
                "0",
                "--console-port",
                "off",
                "--grpc-port",
                "off",
            ],
            cwd=folder,
            env=environment,
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
                argv, *names = path.read_text().splitlines()
                files.setdefault(kind_of(argv), set()).update(filter(None, map(ours, names)))
        return files


class Own:
    """What this process calls of the client, whose thread begins while this watches."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._called.add(frame.f_code.co_filename)

    def called(self, act: Callable[[], object]) -> set[str]:
        """Return which files this process calls while something is done."""
        self._called.clear()
        sys.setprofile(self._note)
        try:
            act()
        finally:
            sys.setprofile(None)
        return set(filter(None, map(ours, self._called)))


def kind_of(argv: str) -> str:
    """Return what a process is by its job file, such as ``worker``."""
    found = re.search(r"(gateway|controller|worker)[-0-9a-z]*\.json", argv)
    return "launcher" if found is None else found[1]


def ours(name: str) -> str | None:
    """Return a file of the product below the repository's root, None for any other."""
    if not name.startswith("/"):
        return None  # Code that was generated.
    try:
        path = Path(name).resolve().relative_to(ROOT)
    except ValueError:
        return None
    skipped = ("tests", "experiments", ".venv")
    return None if path.parts[0] in skipped else path.as_posix()


def paths(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return, for each kind of request, the files that it passes in each kind of process."""
    own = Own()
    cluster = Watched(folder)
    found: dict[str, dict[str, set[str]]] = {}
    try:
        with Client(cluster.address) as client:
            rows = {"data": np.zeros((1, 1000), np.float32)}
            body = {
                "inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 1000], "data": [0.0] * 1000}]
            }
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
    for name, passed in found.items():
        every = set[str]().union(*passed.values())
        shares = ", ".join(f"{kind} {len(each)}" for kind, each in sorted(passed.items()))
        print(f"{name}: {len(every)} files, {lines_of(every):,} lines ({shares})")
        if files:
            for kind, each in sorted(passed.items()):
                print(f"  {kind}:", *sorted(each), sep="\n    ")


if __name__ == "__main__":
    typer.run(main)
