"""Values that make a model compute for ever: the execution is ended, and the worker goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mainspring
from mainspring import Client
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.worker.config import MIB
from tests.gateway.fakes import wait_until
from tests.made_models import Made, save
from tests.patience import PATIENCE_S

LOOP = """g (float[2,2] x, int64 steps) => (float[2,2] y) {
    y = Loop(steps, go, x) <body = b (int64 i, bool c, float[2,2] h) => (bool o, float[2,2] r) {
        o = Identity(c) r = Tanh(h) }>
}"""
EVEN = "g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }"
X = np.ones((2, 2), np.float32)
WITHOUT_END = 10**15
SLO_MS = 120_000.0
"""Longer than any patience: what ends a request is the worker."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("overruns")
    for name, graph, sizes in (("loop", LOOP, (1,)), ("even", EVEN, (1, 2))):
        values = {"go": np.array(True)} if name == "loop" else {}
        save(Made(name, graph, values, 17, 9), made / f"{name}.onnx")
        compile_file(made / f"{name}.onnx", name, Store(made / "store"), sizes)
    return made / "store"


@pytest.fixture(params=[200.0])
def cluster(
    store: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[LocalCluster, Client]]:
    """Its worker has this ``overrun_ms``."""
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {"store": str(store), "run_dir": str(tmp_path / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 8, "io_bytes": 64 * MIB, "realtime": False, "overrun_ms": request.param},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with (
        LocalCluster(make_plan(config), lambda _: None) as running,
        Client(f"tcp://127.0.0.1:{gateway}") as client,
    ):
        yield running, client


def loop(client: Client, steps: int) -> np.ndarray:
    answer = client.infer("loop", {"x": X, "steps": np.array(steps, np.int64)}, slo_ms=SLO_MS)
    return np.asarray(answer["y"])


def even(client: Client) -> None:
    found = client.infer("even", {"x": np.ones((1, 3), np.float32)}, slo_ms=SLO_MS)["y"]
    np.testing.assert_array_equal(found, -np.ones((1, 3), np.float32))


def test_a_loop_without_end_is_ended_and_others_are_served(cluster: tuple[LocalCluster, Client]) -> None:
    running, client = cluster
    starts = running.supervisor.starts("worker-0")
    np.testing.assert_allclose(loop(client, 3), np.tanh(np.tanh(np.tanh(X))), rtol=1e-6)
    for _ in range(4):
        # An answer in between: it is the values that are at fault, so the model goes on.
        with pytest.raises(mainspring.InvalidValues, match=r"still computed after .* and was ended"):
            loop(client, WITHOUT_END)
        even(client)
        np.testing.assert_allclose(loop(client, 1), np.tanh(X), rtol=1e-6)
    assert running.supervisor.starts("worker-0") == starts, "no worker died"
    assert len(client.status().workers) == 1


def test_a_model_that_never_ends_is_given_up_and_others_are_served(
    cluster: tuple[LocalCluster, Client],
) -> None:
    running, client = cluster
    starts = running.supervisor.starts("worker-0")
    for _ in range(3):
        with pytest.raises(mainspring.InvalidValues, match="was ended"):
            loop(client, WITHOUT_END)
    with pytest.raises(mainspring.NoWorker, match="INFERs took so long again and again"):
        loop(client, 1)
    (failed,) = [each.failed_on for each in client.status().models if each.name == "loop"]
    assert failed
    even(client)
    assert running.supervisor.starts("worker-0") == starts, "no worker died"


@pytest.mark.parametrize("cluster", [0.0], indirect=True)
def test_a_worker_that_was_dropped_for_it_ends_what_it_computes_and_joins_again(
    cluster: tuple[LocalCluster, Client],
) -> None:
    running, client = cluster
    even(client)
    starts = running.supervisor.starts("worker-0")
    with pytest.raises(mainspring.Unavailable, match="worker"):
        loop(client, WITHOUT_END)
    wait_until(lambda: served(client), PATIENCE_S)
    assert running.supervisor.starts("worker-0") == starts, "no worker died"


def served(client: Client) -> bool:
    try:
        even(client)
    except mainspring.MainspringError:
        return False
    return True
