"""Servers of an identity model over HTTP, each with what it takes by itself as JSON.

Mainspring runs the model by its engine, compiled from ONNX, behind gateway and controller; the others return
the input from Python, in an environment of their own (``make bench-http`` makes it).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import typer
from onnx import TensorProto, helper

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.experiments.bench.http_load import Target

NAMES = ("mainspring", "litserve", "mlserver", "ray")
COLUMNS = 16
START_S = 180.0
"""Ray needs a minute on two cores."""
STOP_S = 15.0
_APPS = Path(__file__).parent / "http_apps"
_X = [round(index * 0.25, 2) for index in range(COLUMNS)]
_TENSOR = {"name": "x", "shape": [1, COLUMNS], "datatype": "FP32", "data": _X}
_OIP = json.dumps({"inputs": [_TENSOR]})
_OWN = json.dumps({"input": _X})
_OIP_PATH = "/v2/models/identity/infer"


class NoServer(RuntimeError):
    """A server that can't be started; the text says why."""


@contextmanager
def serving(name: str, folder: Path, python: Path) -> Iterator[Target]:
    """Start a server, wait until it answers, and stop it at the end.

    ``python`` is that of the others' environment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, *more = free_ports(3)
    if name == "mainspring":
        with _mainspring(folder, port):
            target = Target(port, _OIP_PATH, _OIP)
            _wait(target, None, folder)
            yield target
        return
    target = {
        "litserve": Target(port, "/predict", _OWN),
        "mlserver": Target(port, _OIP_PATH, _OIP),
        "ray": Target(port, "/", _OWN),
    }[name]
    with _program(name, folder, python, (port, *more)) as process:
        _wait(target, process, folder)
        yield target


@contextmanager
def refusing() -> Iterator[Target]:
    """Run a server that refuses all (`http_refusing`); raise `NoServer` if it does not start."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mainspring.experiments.bench.http_refusing", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise NoServer(f"the server that refuses all ended with code {process.wait()}")
            yield Target(port, _OIP_PATH, _OIP)
        finally:
            process.terminate()


@contextmanager
def _mainspring(folder: Path, port: int) -> Iterator[None]:
    model = folder / "identity.onnx"
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", COLUMNS]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", rows[:1], rows[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    compile_file(model, "identity", Store(folder / "store"))
    gateway, controller = free_ports(2)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(folder / "store"), "run_dir": str(folder / "run")},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{port}",
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "worker": {"pages": 4},
    }
    with LocalCluster(make_plan(read_config(tables, "this benchmark")), typer.echo):
        yield


@contextmanager
def _program(
    name: str, folder: Path, python: Path, ports: tuple[int, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(python), str(_APPS / f"{name}_identity.py"), str(folder / name), *map(str, ports)]
    # A group of its own: some servers leave processes behind when only the first one is stopped.
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(target: Target, process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """Wait until the server answers with outputs; raise `NoServer` if it ends or takes too long."""
    give_up = time.monotonic() + START_S
    while (status := _ask(target)) != 200:
        if process is not None and process.poll() is not None:
            last = " / ".join(_log(folder)[-3:])
            raise NoServer(f"it ended with code {process.returncode}; its log ends with: {last}")
        if time.monotonic() > give_up:
            last = " / ".join(_log(folder)[-3:])
            raise NoServer(f"no outputs after {START_S:g} s (status {status}); its log ends with: {last}")
        time.sleep(0.2)


def _log(folder: Path) -> list[str]:
    """Return the lines of a server's log, cut to what fits a message."""
    lines = [
        line
        for path in sorted(folder.glob("*.log"))
        for line in path.read_text("utf-8", "replace").split("\n")
    ]
    return [line[:200] for line in lines if line.strip()]


def _ask(target: Target) -> int | None:
    """Send one request; return its status, None without a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=5)
    try:
        headers = {"Content-Type": "application/json", **dict(target.headers)}
        connection.request("POST", target.path, target.body, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
