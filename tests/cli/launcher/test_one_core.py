"""A whole cluster on one core: what decides goes before what computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.cli.configuration.config import Config, read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.jobs import WorkerJob
from mainspring.cli.launcher.process_plan import CONTROL_PRIORITY, make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import DeadlineError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.worker.realtime import SHARED_EXEC_PRIORITY
from tests.patience import PATIENCE_S

SIDE = 512
PRODUCTS = 60
"""One after the other: some tenths of a second of one core."""
LEARNT = 4
"""Executions after which the controller knows how long one takes."""
HOPELESS_MS = 4.0
"""Long enough to be sent, far too short for an execution."""
FEW = 5
"""Refusals for which there may be time before EXEC begins."""
TRIES = 4
"""Executions. If EXEC went first, no request would be read during any of them."""
CLIENT_PRIORITY = 20
"""Real-time, where permitted: other programs on the client's core must not keep it from asking."""


@contextmanager
def on_one_core() -> Iterator[Callable[[], None]]:
    """Have a cluster that is started here use the last core alone.

    Yields what moves this thread to the other cores, before other programs there.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])

    def leave() -> None:
        os.sched_setaffinity(0, cores[:-1])
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CLIENT_PRIORITY))

    try:
        yield leave
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one model that keeps a core busy for long."""
    folder = tmp_path_factory.mktemp("one-core")
    random = np.random.default_rng(0)
    weights = random.standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE**0.5
    products = ["square", *(f"p{number}" for number in range(PRODUCTS))]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "last"], ["column"]),
        helper.make_node("Mul", ["column", "row"], ["square"]),
        *[helper.make_node("MatMul", [products[n], "w"], [products[n + 1]]) for n in range(PRODUCTS)],
        helper.make_node("ReduceMax", [products[-1]], ["y"], axes=[2], keepdims=0),
    ]
    taken, given = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", SIDE]) for name in "xy")
    constants = {"w": weights, "row": random.random((1, SIDE), np.float32), "last": np.array([2])}
    graph = helper.make_graph(
        nodes,
        "long",
        [taken],
        [given],
        [numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "long.onnx").write_bytes(model.SerializeToString())
    compile_file(folder / "long.onnx", "long", Store(folder / "store"), (1,))
    return folder / "store"


@pytest.fixture
def configured(store: Path, tmp_path: Path) -> Callable[..., Config]:
    """Return a function that makes a configuration; its keywords go into [cluster]."""

    def make(**cluster: Any) -> Config:
        (gateway,) = free_ports(1)
        tables = {
            "cluster": {"store": str(store), "run_dir": str(tmp_path / "run"), **cluster},
            "worker": {"pages": 16},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        }
        return read_config(tables, "the test")

    return make


@pytest.mark.parametrize(
    ("cores", "workers", "shared"),
    [
        ({2}, 1, [True]),
        ({2, 3}, 1, [False]),
        ({2, 3}, 3, [False, True, True]),
        ({1, 2, 3}, 2, [False, False]),
    ],
)
def test_the_launcher_says_which_exec_shares_its_core(
    configured: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    cores: set[int],
    workers: int,
    shared: list[bool],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    jobs = make_plan(configured(workers=workers)).jobs
    assert [job.worker.exec_core_shared for job in jobs if isinstance(job, WorkerJob)] == shared


def test_an_exec_behind_control_is_before_other_programs() -> None:
    assert 1 < SHARED_EXEC_PRIORITY < CONTROL_PRIORITY


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the client needs a core beside the cluster's")
def test_requests_are_refused_while_exec_runs_on_the_only_core(configured: Callable[..., Config]) -> None:
    """If EXEC went first, nothing would be read before its end: refusals would come with its answer."""
    inputs = {"x": np.ones((1, SIDE), np.float32)}
    with on_one_core() as leave, LocalCluster(make_plan(configured()), lambda _: None) as cluster:
        leave()
        with Client(cluster.address) as client:
            for _ in range(LEARNT):
                client.infer("long", inputs)
            # What else runs on this machine may keep the client from asking during one execution.
            refused = [refusals_during_one(client, inputs) for _ in range(TRIES)]
    assert max(refused) > FEW, f"{refused} refusals came before the answers"


def refusals_during_one(client: Client, inputs: dict[str, np.ndarray]) -> int:
    """Return how many requests were refused before an execution that began before them had its answer."""
    answer = client.submit("long", inputs)
    refused = 0
    while not answer.done():
        with pytest.raises(DeadlineError):
            client.infer("long", inputs, slo_ms=HOPELESS_MS)
        refused += not answer.done()
    assert "y" in answer.result(PATIENCE_S)
    return refused
