"""A live cluster with a Python model that ends, hangs and runs out of memory: nobody else is disturbed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import mainspring
from mainspring import Client
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.python_models.compiling import compile_folder
from mainspring.worker.config import MIB
from tests.gateway.fakes import wait_until
from tests.made_models import Made, save
from tests.patience import PATIENCE_S
from tests.python_models import (
    EXITS,
    LOOPS,
    NO_MEMORY,
    ODD,
    PRINTS,
    REFUSES,
    SEGFAULTS,
    SLEEPS,
    UNFIT,
    folder,
)

EVEN = "g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }"
SLO_MS = 120_000.0
OWN = """
rows = "own"
[most]
n = 64
[[inputs]]
name = "x"
dtype = "float32"
shape = ["n", 2]
[[outputs]]
name = "y"
dtype = "float32"
shape = ["<=64", 2]
[[outputs]]
name = "text"
dtype = "bytes"
most_bytes = 16
shape = [1]
"""
POSITIVE = 'x = inputs["x"]\nreturn {"y": x[x[:, 0] > 0], "text": [f"{len(x)} rows"]}'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("python")
    store = Store(made / "store")
    compile_folder(folder(made / "odd", ODD), "odd", store)
    compile_folder(folder(made / "own", POSITIVE, OWN, ""), "own", store)
    save(Made("even", EVEN, {}, 17, 9), made / "even.onnx")
    compile_file(made / "even.onnx", "even", store, (1, 2))
    return store.root


@pytest.fixture
def cluster(store: Path, tmp_path: Path) -> Iterator[tuple[LocalCluster, Client]]:
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {"store": str(store), "run_dir": str(tmp_path / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 8, "io_bytes": 64 * MIB, "realtime": False},
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


def odd(client: Client, value: float, rows: int = 1) -> np.ndarray:
    answer = client.infer("odd", {"x": np.full((rows, 3), value, np.float32)}, slo_ms=SLO_MS)
    return np.asarray(answer["y"])


def serves(client: Client) -> bool:
    try:
        return bool((odd(client, 1) == 2).all())
    except mainspring.MainspringError:
        return False


def serves_even(client: Client) -> bool:
    try:
        even(client)
    except mainspring.MainspringError:
        return False
    return True


def even(client: Client) -> None:
    found = client.infer("even", {"x": np.ones((1, 3), np.float32)}, slo_ms=SLO_MS)["y"]
    np.testing.assert_array_equal(found, -np.ones((1, 3), np.float32))


def hosts() -> list[psutil.Process]:
    """Return the processes of Python models that this process's workers have."""
    below = psutil.Process().children(recursive=True)
    return [each for each in below if any(part.endswith("python_host.py") for part in each.cmdline())]


FAULTS = {
    EXITS: (mainspring.Unavailable, "with exit code 3: model.py may not end it"),
    SEGFAULTS: (mainspring.Unavailable, "by SIGSEGV: native code in it failed"),
    LOOPS: (mainspring.InvalidValues, "still computed after .* and was ended"),
    SLEEPS: (mainspring.InvalidValues, "still computed after .* and was ended"),
    NO_MEMORY: (mainspring.Unavailable, "needs more memory than the 256 MiB"),
    UNFIT: (mainspring.Unavailable, "the output 'y' is of shape"),
    REFUSES: (mainspring.InvalidValues, "^x may not be 1006"),
}


def test_what_fails_costs_its_request_and_no_other_model_an_answer(
    cluster: tuple[LocalCluster, Client],
) -> None:
    running, client = cluster
    starts = running.supervisor.starts("worker-0")
    stop, failed, answered = threading.Event(), list[Exception](), [0]

    def others() -> None:
        while not stop.is_set():
            try:
                even(client)
                answered[0] += 1
            except Exception as error:
                failed.append(error)
            time.sleep(0.01)

    beside = threading.Thread(target=others)
    beside.start()
    try:
        for value, (kind, said) in FAULTS.items():
            wait_until(lambda: serves(client), PATIENCE_S)
            with pytest.raises(kind, match=said):
                odd(client, value)
            wait_until(lambda: serves(client), PATIENCE_S)
        np.testing.assert_array_equal(odd(client, PRINTS), np.full((1, 3), 2 * PRINTS))
    finally:
        stop.set()
        beside.join()
    assert answered[0]
    assert not failed
    assert running.supervisor.starts("worker-0") == starts, "no worker died"


def test_rows_share_batches_and_come_back_in_order(cluster: tuple[LocalCluster, Client]) -> None:
    _, client = cluster
    for rows in (1, 2, 3, 4):
        np.testing.assert_array_equal(odd(client, rows, rows), np.full((rows, 3), 2 * rows, np.float32))


def test_rows_of_their_own_number(cluster: tuple[LocalCluster, Client]) -> None:
    _, client = cluster
    x = np.array([[1, 2], [-1, 3], [4, 5]], np.float32)
    for taken in (x, x[1:2], np.tile(x, (20, 1))):
        answer = client.infer("own", {"x": taken}, slo_ms=SLO_MS)
        np.testing.assert_array_equal(answer["y"], taken[taken[:, 0] > 0])
        assert np.asarray(answer["text"]).tolist() == [f"{len(taken)} rows".encode()]


def test_processes_end_with_their_worker_and_come_with_the_next(
    cluster: tuple[LocalCluster, Client],
) -> None:
    _, client = cluster
    assert serves(client)
    before = {each.pid for each in hosts()}
    assert len(before) == 2, "one for each Python model"
    parent = {psutil.Process(each).ppid() for each in before}
    for each in parent:
        os.kill(each, signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(each) for each in before), PATIENCE_S)
    wait_until(lambda: serves(client), PATIENCE_S)
    wait_until(lambda: serves_even(client), PATIENCE_S)
