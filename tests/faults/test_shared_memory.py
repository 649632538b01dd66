"""Processes that share memory and are killed: every request has its one reply, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring import Client, MainspringError
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.result import InferResult
from tests.emulated_cluster import cluster_of, write_profile
from tests.patience import PATIENCE_S

KB = 200
INPUT = {"data": np.ones((1, KB * 250), np.float32)}
INPUTS, OUTPUTS, CLIENTS = "mainspring-inputs", "mainspring-outputs", "mainspring-client"


@contextmanager
def running(folder: Path, **tables: dict[str, Any]) -> Iterator[tuple[LocalCluster, Client]]:
    """Run two workers whose model takes and gives large tensors, in 2 ms."""
    profile = write_profile(folder / "profiles.csv", input_kb=KB, output_kb=KB, execute_ms=2)
    given = {"cluster": {"workers": 2}, "worker": {"io_bytes": 64 << 20}}
    for name, table in tables.items():
        given.setdefault(name, {}).update(table)
    with (
        cluster_of(folder, profile, given) as cluster,
        Client(cluster.address, connect_timeout_s=PATIENCE_S) as client,
    ):
        client.infer("model", INPUT, slo_ms=20_000)
        yield cluster, client


def mapped(pid: int, name: str) -> int:
    """Return how many pieces of memory of this name a process has mapped."""
    try:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").count(f"/memfd:{name}")
    except OSError:
        return 0


def pids(cluster: LocalCluster) -> dict[str, int]:
    found = {job.name: cluster.supervisor.pid(job.name) for job in cluster.plan.jobs}
    return {name: pid for name, pid in found.items() if pid}


def wait_for(condition: Any, what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain for {what}"
        time.sleep(0.02)


def replies(futures: list[Future[InferResult]]) -> list[str]:
    """Wait for every reply; return what each was: "ok", or its reason."""
    found = []
    for future in futures:
        error = future.exception(60)
        assert error is None or isinstance(error, MainspringError), error
        found.append("ok" if error is None else str(error.reason))
    return found


def load(client: Client, count: int) -> list[Future[InferResult]]:
    return [client.submit("model", INPUT, slo_ms=20_000) for _ in range(count)]


def test_gateway_and_workers_share_memory_in_both_directions(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        found = pids(cluster)
        workers = [pid for name, pid in found.items() if name.startswith("worker")]

        def both() -> bool:
            # A worker is offered memory with the first input for it.
            assert replies(load(client, 40)) == ["ok"] * 40
            return all(mapped(pid, INPUTS) for pid in workers)

        wait_for(both, "both workers to map inputs")
        assert mapped(found["gateway"], INPUTS) == 1
        assert all(mapped(pid, OUTPUTS) for pid in workers)
        wait_for(lambda: mapped(found["gateway"], OUTPUTS) == 2, "the gateway to map both workers' outputs")


def test_a_killed_worker_leaves_no_memory_and_its_requests_are_served_elsewhere(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        assert replies(load(client, 40)) == ["ok"] * 40
        found = pids(cluster)
        for _ in range(2):
            futures = load(client, 60)
            os.kill(pids(cluster)["worker-1"], signal.SIGKILL)
            assert replies(futures) == ["ok"] * 60
            wait_for(lambda: pids(cluster).get("worker-1", 0) not in (0, found["worker-1"]), "a new worker")
        # What it had lent is the gateway's to hold until nothing of it is on its way to a client.
        assert replies(load(client, 60)) == ["ok"] * 60
        wait_for(lambda: mapped(found["gateway"], OUTPUTS) <= 2, "the gateway to let the dead worker's go")
        assert mapped(found["gateway"], INPUTS) == 1


def test_a_killed_gateway_leaves_no_memory_in_the_workers(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        before = pids(cluster)
        workers = [pid for name, pid in before.items() if name.startswith("worker")]
        load(client, 60)
        os.kill(before["gateway"], signal.SIGKILL)
        wait_for(lambda: pids(cluster).get("gateway", 0) not in (0, before["gateway"]), "a new gateway")
        with Client(cluster.address, connect_timeout_s=PATIENCE_S) as another:
            wait_for(lambda: set(replies(load(another, 20))) == {"ok"}, "the new gateway to serve")
        wait_for(lambda: all(mapped(pid, INPUTS) <= 1 for pid in workers), "the killed one's to be unmapped")
        assert all(mapped(pid, OUTPUTS) <= 1 for pid in workers)
        assert {name: pid for name, pid in pids(cluster).items() if name != "gateway"} == {
            name: pid for name, pid in before.items() if name != "gateway"
        }


CLIENT = """
import sys
import numpy as np
from mainspring import Client
client = Client(sys.argv[1], connect_timeout_s=60)
given = client.allocate((1, int(sys.argv[2])))
given[:] = 1
while not client.shares_memory:
    client.infer("model", {"data": given}, slo_ms=20_000)
print("shares", flush=True)
while True:
    [client.submit("model", {"data": given}, slo_ms=20_000) for _ in range(20)][0].result()
"""


def test_a_killed_client_leaves_no_memory(tmp_path: Path) -> None:
    """It writes its inputs in memory of its own, and dies while requests are read there."""
    with running(tmp_path) as (cluster, client):
        found = pids(cluster)
        # This process is a client too.
        wait_for(lambda: set(replies(load(client, 1))) == {"ok"} and client.shares_memory, "shared memory")
        for _ in range(2):
            command = [sys.executable, "-c", CLIENT, cluster.address, str(KB * 250)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
                assert other.stdout is not None
                assert other.stdout.readline() == "shares\n"
                assert mapped(found["gateway"], CLIENTS) == 2
                other.kill()
            wait_for(lambda: mapped(found["gateway"], CLIENTS) == 1, "the dead client's to be unmapped")
            assert replies(load(client, 40)) == ["ok"] * 40
        assert pids(cluster) == found


@pytest.mark.parametrize("slab_bytes", [0, 1 << 20], ids=["none", "small"])
def test_nothing_is_refused_for_want_of_shared_memory(tmp_path: Path, slab_bytes: int) -> None:
    tables = {"gateway": {"slab_bytes": slab_bytes}, "worker": {"slab_bytes": slab_bytes}}
    with running(tmp_path, **tables) as (cluster, client):
        assert replies(load(client, 80)) == ["ok"] * 80
        assert bool(mapped(pids(cluster)["gateway"], INPUTS)) == bool(slab_bytes)
