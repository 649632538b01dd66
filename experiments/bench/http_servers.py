"""Servers over HTTP: Mainspring with an identity model compiled from ONNX, and a loop that refuses all."""

from __future__ import annotations

import http.client
import json
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
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.experiments.bench.http_load import Target

COLUMNS = 16
START_S = 60.0
_X = [round(index * 0.25, 2) for index in range(COLUMNS)]
_TENSOR = {"name": "x", "shape": [1, COLUMNS], "datatype": "FP32", "data": _X}
_BODY = json.dumps({"inputs": [_TENSOR]})
_PATH = "/v2/models/identity/infer"


class NoServer(RuntimeError):
    """A server that can't be started; the text says why."""


@contextmanager
def serving(folder: Path) -> Iterator[Target]:
    """Start Mainspring with an identity model, wait until it answers, and stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    with _mainspring(folder, port):
        target = Target(port, _PATH, _BODY)
        wait_for(target)
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
            yield Target(port, _PATH, _BODY)
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


def wait_for(target: Target) -> None:
    """Return once a server answers; raise `NoServer` if it does not within `START_S`."""
    give_up = time.monotonic() + START_S
    while (status := _ask(target)) != 200:
        if time.monotonic() > give_up:
            raise NoServer(f"no outputs after {START_S:g} s (status {status})")
        time.sleep(0.2)


def _ask(target: Target) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=5)
    try:
        headers = {"Content-Type": "application/json", **dict(target.headers)}
        connection.request("POST", target.path, target.body, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
