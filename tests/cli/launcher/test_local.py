"""Whole clusters of real processes over real sockets, on emulated devices."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
import numpy as np
import psutil
import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.jobs import ControllerJob
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.running import ClusterError
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.client.result import InferResult
from mainspring.messages.tables import ConfigError
from tests.patience import PATIENCE_S

INPUT = {"data": np.zeros((1, 1000), np.float32)}


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.02)


def ends_well(future: Future[InferResult]) -> bool:
    """Whether the reply has outputs; anything but a reply of either kind fails the test."""
    try:
        return "output" in future.result(PATIENCE_S)
    except MainspringError:
        return False


def test_a_killed_worker_costs_no_reply_and_comes_back(emulated: Callable[..., Config]) -> None:
    said: list[str] = []
    with (
        LocalCluster(make_plan(emulated(workers=2)), said.append) as cluster,
        Client(cluster.address) as client,
    ):
        supervisor = cluster.supervisor
        pids = {name: supervisor.pid(name) for name in ("controller", "gateway", "worker-0", "worker-1")}
        futures = []
        for number in range(200):
            futures.append(client.submit(f"quick-{number % 2 + 1}", INPUT, slo_ms=1000))
            if number == 60:
                os.kill(supervisor.pid("worker-0") or 0, signal.SIGKILL)
            time.sleep(0.005)
        served = [ends_well(future) for future in futures]
        assert sum(served[:50]) >= 45
        assert sum(served[-50:]) >= 45, "the other worker should have served on"
        wait_for(lambda: supervisor.starts("worker-0") == 2, "the restart")
        wait_for(lambda: len(client.status().workers) == 2, "the worker to join again")
        assert ends_well(client.submit("slow-2", INPUT, slo_ms=5000))
        assert supervisor.pid("controller") == pids["controller"]
    assert any("worker-0 died (killed by signal 9)" in line for line in said)
    assert not any(psutil.pid_exists(pid) for pid in pids.values() if pid)


@pytest.mark.parametrize("victim", ["gateway", "controller"])
def test_the_cluster_serves_again_after_any_process_died(
    emulated: Callable[..., Config], victim: str
) -> None:
    with LocalCluster(make_plan(emulated()), lambda _: None) as cluster:
        os.kill(cluster.supervisor.pid(victim) or 0, signal.SIGKILL)
        wait_for(lambda: cluster.supervisor.starts(victim) == 2, "the restart")
        with Client(cluster.address, connect_timeout_s=PATIENCE_S) as client:

            def serves() -> bool:
                return ends_well(client.submit("quick-1", INPUT, slo_ms=2000))

            wait_for(serves, f"answers after the {victim}'s death")


def test_a_port_in_use_starts_nothing(emulated: Callable[..., Config]) -> None:
    config = emulated()
    port = int(config.gateway.address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="is in use"):
        LocalCluster(make_plan(config), lambda _: None).__enter__()


def test_a_process_that_can_not_run_ends_the_start_with_its_last_words(
    emulated: Callable[..., Config],
) -> None:
    config = emulated()
    quick = msgspec.structs.replace(config.cluster, restart_delay_ms=10.0)
    plan = make_plan(msgspec.structs.replace(config, cluster=quick))
    controller = plan.jobs[0]
    assert isinstance(controller, ControllerJob)
    broken = msgspec.structs.replace(
        controller, scheduler=msgspec.structs.replace(controller.scheduler, policy="clockwise")
    )
    plan = msgspec.structs.replace(plan, jobs=(broken, *plan.jobs[1:]))
    with pytest.raises(ClusterError, match=r"controller died .*clockwise.*as at each of its 3 starts"):
        LocalCluster(plan, lambda _: None).__enter__()
