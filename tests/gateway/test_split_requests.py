"""Requests with more rows than the largest batch, through whole clusters of processes."""

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

from mainspring import Client
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.errors import DeadlinePassed, DeadlineUnreachable, MainspringError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.messages.codes import Reason
from mainspring.worker.config import MIB

ROWS, COLUMNS, LARGEST = 500, 64, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("split")
    weights = np.random.default_rng(1).normal(size=(COLUMNS, COLUMNS)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", COLUMNS])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (made / "net.onnx").write_bytes(model.SerializeToString())
    compile_file(made / "net.onnx", "net", Store(made / "store"), (1, 2, 4, LARGEST))
    return made


@contextmanager
def served(folder: Path, run: str) -> Iterator[LocalCluster]:
    gateway, controller, http, grpc = free_ports(4)
    config = read_config(
        {
            "cluster": {
                "store": str(folder / "store"),
                "run_dir": str(folder / run),
                "workers": 2,
                "ready_timeout_s": 90,
            },
            "worker": {"pages": 4, "io_bytes": 16 * MIB, "realtime": False},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{http}",
                "grpc_address": f"grpc://127.0.0.1:{grpc}",
                "max_rows_per_request": 1_000,
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
    return np.random.default_rng(2).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def place(cluster: LocalCluster, protocol: str) -> str:
    [config] = [job.gateway for job in cluster.plan.jobs if isinstance(job, GatewayJob)]
    return str(getattr(config, f"{protocol}_address")).rpartition("//")[2]


def one_by_one(client: Client, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the outputs for the same rows sent as requests of the largest batch."""
    futures = [
        client.submit("net", {"x": rows[first : first + LARGEST]}, slo="30s")
        for first in range(0, len(rows), LARGEST)
    ]
    return np.concatenate([future.result()["y"] for future in futures])


def test_all_rows_are_answered_as_one_by_each_protocol(
    cluster: LocalCluster, folder: Path, rows: NDArray[np.float32]
) -> None:
    with Client(cluster.address) as client:
        expected = one_by_one(client, rows)
        found = client.infer("net", {"x": rows}, slo="30s")
    assert np.array_equal(found["y"], expected)
    (reference,) = onnxruntime.InferenceSession(folder / "net.onnx").run(None, {"x": rows})
    np.testing.assert_allclose(expected, reference, rtol=1e-4, atol=1e-5)
    for module, protocol in ((tritonclient.http, "http"), (tritonclient.grpc, "grpc")):
        tensor = module.InferInput("x", rows.shape, "FP32")
        tensor.set_data_from_numpy(rows)
        with module.InferenceServerClient(place(cluster, protocol)) as other:
            assert np.array_equal(other.infer("net", [tensor]).as_numpy("y"), expected)


def test_what_can_t_be_whole_in_time_is_refused_at_once(
    cluster: LocalCluster, rows: NDArray[np.float32]
) -> None:
    def ask(client: Client) -> str:
        """Return why it was refused; empty where the way to the gateway alone took too long."""
        one_by_one(client, rows)
        began = time.monotonic()
        with pytest.raises((DeadlinePassed, DeadlineUnreachable)) as caught:
            client.infer("net", {"x": np.tile(rows, (2, 1))}, slo="4.5ms")
        assert time.monotonic() - began < 1.0
        said = str(caught.value)
        return "" if "in this client" in said else said

    with Client(cluster.address) as client:
        assert "of 125 (rows " in next(filter(None, (ask(client) for _ in range(50))))


def test_more_rows_than_the_bound_name_its_key(cluster: LocalCluster, rows: NDArray[np.float32]) -> None:
    with Client(cluster.address) as client, pytest.raises(MainspringError) as caught:
        client.infer("net", {"x": np.tile(rows, (3, 1))}, slo="30s")
    assert caught.value.reason is Reason.TOO_MANY_ROWS
    assert "max_rows_per_request" in str(caught.value)


def test_a_worker_that_is_killed_meanwhile_costs_no_rows(folder: Path, rows: NDArray[np.float32]) -> None:
    with served(folder, "killed") as cluster, Client(cluster.address) as client:
        expected = one_by_one(client, rows)
        stop = threading.Event()
        found: list[NDArray[np.float32]] = []

        def ask() -> None:
            while not stop.is_set():
                found.append(client.infer("net", {"x": rows}, slo="30s")["y"])

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for each in asking:
            each.start()
        time.sleep(0.5)
        pid = cluster.supervisor.pid("worker-0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(2.0)
        stop.set()
        for each in asking:
            each.join()
        assert len(found) > 3
        assert all(np.array_equal(each, expected) for each in found)
