"""Clusters whose processes are actors of Ray: three nodes on this machine, one of which is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import psutil
import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.on_ray import adapted, check_resources, cluster_on_ray
from mainspring.cli.launcher.ray_children import shown
from mainspring.cli.launcher.running import Beside
from mainspring.client.client import Client
from mainspring.compiler.artifact.profiles import EMULATED
from mainspring.messages.tables import ConfigError
from tests.cli.launcher.test_local import wait_for
from tests.cli.launcher.test_scaling import Load, running, scale

STORE_BYTES = 80 << 20
SETTINGS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""How soon Ray takes a node for lost: in 3 s, and not in 15 s as it does by itself."""


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeName": name, "Resources": resources}


def test_resources_that_no_node_has_are_an_error_with_what_was_asked_for_and_what_there_is() -> None:
    nodes = [node("n0", CPU=4.0, memory=1e9), node("n1", CPU=8.0)]
    here = nodes[0]
    all_have = r"needs CPU 1, GPU 1, and no node .*: n0 has CPU 4; n1 has CPU 8"
    with pytest.raises(ConfigError, match=all_have):
        check_resources(nodes, here, {"CPU": 1.0, "GPU": 1.0}, 2, {"CPU": 12.0})
    with pytest.raises(ConfigError, match=r"12 workers need CPU 1 each, .* Ray cluster is CPU 12"):
        check_resources(nodes, here, {"CPU": 1.0}, 12, {"CPU": 12.0})
    with pytest.raises(ConfigError, match=r"need CPU 1 on this node, head, which has GPU 1"):
        check_resources(nodes, node("head", GPU=1.0), {"CPU": 1.0}, 1, {"CPU": 12.0})
    check_resources(nodes, here, {"CPU": 1.0}, 11, {"CPU": 12.0})


def test_resources_are_shown_without_those_that_only_name_a_node() -> None:
    assert shown({"CPU": 2.0, "node:127.0.0.1": 1.0, "object_store_memory": 1e9}) == "CPU 2"


def test_processes_find_each_other_on_other_nodes(emulated: Callable[..., Config]) -> None:
    config = emulated()
    alone = adapted(config, "")
    assert (alone.controller.address, alone.worker.realtime) == ("", False)
    there = adapted(config, "10.0.0.1")
    assert there.controller.address.startswith("tcp://10.0.0.1:")
    assert there.worker.data_address == "tcp://0.0.0.0:*"
    assert adapted(config, "127.0.0.1").worker.data_address == ""


def test_ray_that_is_not_there_is_named(
    emulated: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(address: str) -> None:
        cluster_on_ray(emulated(), address, lambda _: None)

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="Ray is not installed here"):
        begin("local")
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        begin("127.0.0.1:1")
    with pytest.raises(ConfigError, match="run it on a node of the Ray cluster, with --ray auto"):
        begin("ray://head:10001")


class Nodes:
    """Three nodes of Ray on this machine, each with an address of its own."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"include_dashboard": False, "_system_config": SETTINGS}
        self.cluster = Cluster(initialize_head=True, head_node_args={**self._node(), **head})
        self.others = [
            self.cluster.add_node(wait=False, node_ip_address=f"127.0.0.{number}", **self._node())
            for number in (2, 3)
        ]
        self.cluster.wait_for_nodes()

    def _node(self) -> dict[str, Any]:
        return {"num_cpus": 2, "object_store_memory": STORE_BYTES}

    def that_has(self, pid: int) -> Any:
        """Return the node, of those that can be lost, below whose raylet a process runs."""
        above = {each.pid for each in psutil.Process(pid).parents()}
        return next((each for each in self.others if raylet(each) in above), None)

    def lose(self, node: Any) -> None:
        self.others.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


def raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
    made = Nodes()
    yield made
    ray.shutdown()
    made.cluster.shutdown()


def test_a_node_that_is_lost_under_load_costs_no_reply_and_its_worker_serves_elsewhere(
    emulated: Callable[..., Config], nodes: Nodes
) -> None:
    said: list[str] = []
    run = cluster_on_ray(emulated(workers=3, insecure=True), nodes.cluster.address, said.append)
    names = ("worker-0", "worker-1", "worker-2")

    def joined() -> dict[str, int]:
        return {each.worker: run.pid(each.worker) for each in client.status().workers}

    with Beside(run) as cluster, Client(cluster.address) as client:
        before = joined()
        where = {name: nodes.that_has(pid) for name, pid in before.items()}
        lost = next(node for node in where.values() if node is not None)
        victims = [name for name in names if where[name] is lost]
        load = Load(client, rate=20, slo_ms=2000)
        wait_for(lambda: len(load.futures) >= 20, "some requests")
        began = time.monotonic()
        nodes.lose(lost)
        wait_for(lambda: len(client.status().workers) < 3, "the loss to be noticed")
        wait_for(lambda: len(client.status().workers) == 3, "the workers to serve elsewhere")
        took_s = time.monotonic() - began
        wait_for(lambda: all(run.pid(name) != before[name] for name in victims), "their new processes")
        found = load.end()
        print(f"{len(victims)} workers of the lost node serve elsewhere after {took_s:.1f} s; {dict(found)}")
        assert took_s < 15
        assert not sum(count for name, count in found.items() if name not in ("in time", "late", "refused"))
        assert found["in time"] > 0.9 * found.total(), found
        assert {nodes.that_has(run.pid(name)) for name in victims} <= {None, *nodes.others}

        os.kill(run.pid("worker-0"), signal.SIGKILL)
        wait_for(lambda: "worker-0 died (killed by signal 9" in client.status().kinds[0].fault, "the fault")
        wait_for(lambda: len(client.status().workers) == 3, "worker-0 to come again")
        wait_for(lambda: client.status().kinds[0].fault == "", "the fault to be over")

        scale(client, 2)
        assert running(client) == (2, 2, 0)
        client.scale_workers(EMULATED, 9)
        wait_for(lambda: "waits for a node with CPU 1" in client.status().kinds[0].fault, "the fault")
        scale(client, 3)
    assert not any(psutil.pid_exists(pid) for pid in before.values())
