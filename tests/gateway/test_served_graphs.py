"""Graphs of models through whole clusters of processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from mainspring import Client
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.main import build_app
from mainspring.client.errors import InvalidRequest, MainspringError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.messages.codes import Reason
from mainspring.worker.config import MIB

ROWS, COLUMNS, CLASSES = 21, 16, 5

CASCADE = """
name = "cascade"
slo_ms = 20000
inputs = ["image"]
[[steps]]
name = "fast"
model = "fast"
inputs = { x = "image" }
[[steps]]
name = "slow"
model = "slow"
inputs = { x = "image" }
when = "max(softmax(fast.y)) < 0.6"
[outputs]
logits = ["slow.y", "fast.y"]
sure = "fast.y"
"""
LINES = """
name = "lines"
inputs = ["page"]
[[steps]]
name = "cut"
model = "cut"
inputs = { page = "page" }
[[steps]]
name = "read"
model = "fast"
inputs = { x = "cut.lines" }
rows = "own"
[outputs]
read = "read.y"
"""


def network(path: Path, seed: int, scale: float) -> None:
    weights = (scale * np.random.default_rng(seed).normal(size=(COLUMNS, CLASSES))).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", CLASSES])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def cutter(path: Path) -> None:
    """A model that gives each row of a page, doubled, as a line."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["page", "page"], ["lines"])],
        "cut",
        [helper.make_tensor_value_info("page", TensorProto.FLOAT, ["rows", 3, COLUMNS])],
        [helper.make_tensor_value_info("lines", TensorProto.FLOAT, ["rows", 3, COLUMNS])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("graphs")
    network(made / "fast.onnx", 1, 0.3)
    network(made / "slow.onnx", 2, 0.3)
    cutter(made / "cut.onnx")
    for name in ("fast", "slow", "cut"):
        compile_file(made / f"{name}.onnx", name, Store(made / "store"), (1, 2, 4, 8))
    (made / "graphs").mkdir()
    (made / "graphs" / "cascade.toml").write_text(CASCADE)
    return made


@contextmanager
def served(folder: Path, run: str) -> Iterator[LocalCluster]:
    gateway, controller, http, grpc = free_ports(4)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "graphs": str(folder / "graphs"),
                "run_dir": str(folder / run),
                "workers": 2,
                "ready_timeout_s": 90,
            },
            "worker": {"pages": 4, "io_bytes": 16 * MIB, "realtime": False},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{http}",
                "grpc_address": f"grpc://127.0.0.1:{grpc}",
            },
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with LocalCluster(make_plan(config), lambda _: None) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    with served(folder, "run") as each:
        yield each


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    return np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def session(folder: Path, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    (found,) = onnxruntime.InferenceSession(folder / f"{name}.onnx").run(None, {"x": values})
    return np.asarray(found)


@pytest.fixture(scope="module")
def expected(folder: Path, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the models give that are called one after the other."""
    fast, slow = session(folder, "fast", rows), session(folder, "slow", rows)
    chances = np.exp(fast) / np.exp(fast).sum(axis=1, keepdims=True)
    unsure = chances.max(axis=1) < 0.6
    assert 0 < unsure.sum() < ROWS
    return np.where(unsure[:, None], slow, fast)


def place(cluster: LocalCluster, protocol: str) -> str:
    [config] = [job.gateway for job in cluster.plan.jobs if isinstance(job, GatewayJob)]
    return str(getattr(config, f"{protocol}_address")).rpartition("//")[2]


def test_a_graph_is_answered_over_each_protocol_as_its_models_called_in_turn(
    cluster: LocalCluster, rows: NDArray[np.float32], expected: NDArray[np.float32]
) -> None:
    with Client(cluster.address) as client:
        found = client.infer("cascade", {"image": rows}, slo="30s")
        assert {"cascade", "fast"} <= {spec.name for spec in client.models()}
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-5)
    for module, protocol in ((tritonclient.http, "http"), (tritonclient.grpc, "grpc")):
        tensor = module.InferInput("image", rows.shape, "FP32")
        tensor.set_data_from_numpy(rows)
        with module.InferenceServerClient(place(cluster, protocol)) as other:
            assert other.is_model_ready("cascade")
            answer = other.infer("cascade", [tensor])
            np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-4, atol=1e-5)


def test_lines_of_a_page_become_rows(cluster: LocalCluster, folder: Path, rows: NDArray[np.float32]) -> None:
    with Client(cluster.address) as client:
        client.add_graph(LINES)
        try:
            page = rows[:3].reshape(1, 3, COLUMNS)
            found = client.infer("lines", {"page": page}, slo="30s")["read"]
        finally:
            client.remove_graph("lines")
    np.testing.assert_allclose(found, session(folder, "fast", 2 * rows[:3]), rtol=1e-4, atol=1e-5)


def run(*arguments: str) -> str:
    found = CliRunner().invoke(build_app(), ["graphs", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    return found.output if found.exit_code == 0 else f"{found.exit_code}: {found.exception}"


def test_graphs_are_checked_added_shown_and_removed(cluster: LocalCluster, tmp_path: Path) -> None:
    at = ("--address", cluster.address)
    file = tmp_path / "lines.toml"
    file.write_text(LINES.replace("cut.lines", "cut.line"))
    assert "step 'cut' has no output 'line'; did you mean 'lines'?" in run("check", str(file), *at)
    file.write_text(LINES)
    assert run("check", str(file), *at) == "lines makes sense\n"
    assert "lines" not in run("list", *at)
    assert run("add", str(file), *at) == "added lines\n"
    assert "step read: fast(x = cut.lines)" in run("list", *at)
    with Client(cluster.address) as client, pytest.raises(InvalidRequest) as caught:
        client.remove_model("cut")
    assert "graph 'lines' has a step of model 'cut': remove it first" in str(caught.value)
    assert run("remove", "lines", *at) == "removed lines\n"
    with Client(cluster.address) as client, pytest.raises(MainspringError) as gone:
        client.infer("lines", {"page": np.zeros((1, 3, COLUMNS), np.float32)})
    assert gone.value.reason is Reason.UNKNOWN_MODEL


def test_what_a_step_does_not_take_is_refused_with_its_sentence(
    cluster: LocalCluster, rows: NDArray[np.float32]
) -> None:
    with Client(cluster.address) as client, pytest.raises(MainspringError) as caught:
        client.infer("cascade", {"image": rows[:, :4]}, slo="30s")
    assert caught.value.reason is Reason.BAD_INPUT
    assert "model 'cascade' takes [rows, 16]" in str(caught.value)


def test_a_worker_that_is_killed_between_steps_costs_no_answer(
    folder: Path, rows: NDArray[np.float32], expected: NDArray[np.float32]
) -> None:
    with served(folder, "killed") as cluster, Client(cluster.address) as client:
        stop = threading.Event()
        found: list[NDArray[np.float32]] = []

        def ask() -> None:
            while not stop.is_set():
                found.append(client.infer("cascade", {"image": rows}, slo="30s")["logits"])

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for each in asking:
            each.start()
        while len(found) < 10:
            time.sleep(0.01)
        pid = cluster.supervisor.pid("worker-0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        before = len(found)
        while len(found) < before + 10:
            time.sleep(0.01)
        stop.set()
        for each in asking:
            each.join()
        for each_ in found:
            np.testing.assert_allclose(each_, expected, rtol=1e-4, atol=1e-5)
