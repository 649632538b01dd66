"""A cluster whose processes are actors of Ray: one for each process, and Ray says on which node.

Controller, gateway and what else is not a worker share a bundle on the node of `mainspring up`; each worker
has a placement group of its own, of one bundle, so that workers come and go one by one, as many as the
controller wants (`provider.Runner`). Ray starts a process again that dies, elsewhere if its node is lost.
What is left for `mainspring up` is to be the provider.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.exposure import reaches_beyond
from mainspring.cli.launcher.addresses import free_ports, is_tcp
from mainspring.cli.launcher.jobs import WorkerJob
from mainspring.cli.launcher.process_plan import Plan, make_plan
from mainspring.cli.launcher.provider import Runner
from mainspring.cli.launcher.ray_children import RETRY_S, Child, Resources, Setting, placed, shown
from mainspring.cli.launcher.running import STARTS_BEFORE_READY, ClusterError, Running, no_step
from mainspring.cli.launcher.worker_jobs import WorkerPool
from mainspring.compiler.artifact.manifest import CUDA
from mainspring.messages.scaling import Offer
from mainspring.messages.tables import ConfigError
from mainspring.simulator.ray_address import LOCAL, connect

STOP_POLL_S = 0.02


class _Worker(msgspec.Struct):
    """A worker that is to run."""

    kind: str
    child: Child | None = None
    """None while it can't even be described."""
    fault: str = ""
    retry_s: float = 0.0


class RayWorkers:
    """Starts and stops workers, each in a placement group of its own, of one bundle for its device."""

    def __init__(self, setting: Setting, pool: WorkerPool, say: Callable[[str], None]) -> None:
        self._setting = setting
        self._pool = pool
        self._say = say
        cluster = pool.config.cluster
        self._most = max(cluster.max_workers, cluster.workers)
        self._stop_s = cluster.stop_timeout_s
        self._workers = {name: _Worker(kind.kind) for kind in pool.kinds for name in kind.first}
        self._leaving: dict[str, Child] = {}

    def children(self) -> list[Child]:
        """Return the actors of workers that are to run."""
        return [each.child for each in self._workers.values() if each.child is not None]

    def offers(self) -> tuple[Offer, ...]:
        """Return what runs, and what is wrong with it."""
        faults = {
            each.kind: fault
            for each in self._workers.values()
            if (fault := each.child.fault if each.child is not None else each.fault)
        }
        return tuple(
            Offer(
                kind.kind,
                kind.stem,
                self._most,
                tuple([name for name, each in self._workers.items() if each.kind == kind.kind]),
                faults.get(kind.kind, ""),
            )
            for kind in self._pool.kinds
        )

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:  # noqa: ARG002 - `ShardWorkers` keeps those
        """Start the workers that are missing, and tell all others of the kind to leave."""
        for name in [name for name, each in self._workers.items() if each.kind == kind]:
            if name not in workers:
                self._dismiss(name, time.monotonic() + self._stop_s)
        for name in workers:
            self._workers.setdefault(name, _Worker(kind))

    def tend(self, now_s: float) -> None:
        """Start who is to run, take in what actors say, and see who has left; never waits."""
        for name, child in list(self._leaving.items()):
            if child.left(now_s):
                del self._leaving[name]
                self._forget(child)
        for name, worker in self._workers.items():
            if worker.child is not None:
                if news := worker.child.tend(now_s):
                    self._say(news)
            elif name not in self._leaving and now_s >= worker.retry_s:
                self._hire(name, worker, now_s)

    def stop(self, give_up_s: float) -> None:
        """Have all workers leave, and wait for that until ``give_up_s`` of the monotonic clock."""
        for name in list(self._workers):
            self._dismiss(name, give_up_s)
        while self._leaving:
            self.tend(time.monotonic())
            time.sleep(STOP_POLL_S)

    def _hire(self, name: str, worker: _Worker, now_s: float) -> None:
        try:
            job = on_its_node(self._pool.job(worker.kind, name))
        except ConfigError as error:
            fault = f"{name} can't be started: {error}"
            if fault != worker.fault:
                self._say(fault)
            worker.fault, worker.retry_s = fault, now_s + RETRY_S
            return
        wanted = worker_resources(self._pool.config)
        worker.child = Child(self._setting, job, placed(wanted), wanted)

    def _dismiss(self, name: str, give_up_s: float) -> None:
        child = self._workers.pop(name).child
        if child is not None:
            child.leave(give_up_s)
            self._leaving[name] = child

    @staticmethod
    def _forget(child: Child) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(child.group)


def worker_resources(config: Config) -> Resources:
    """Return what one worker asks of its node: a core, and its GPU if it has one."""
    return {"CPU": 1.0, "GPU": 1.0} if config.cluster.device == CUDA else {"CPU": 1.0}


def on_its_node(job: WorkerJob) -> WorkerJob:
    """Return a worker's job as it is on a node of Ray: a GPU is the only one that Ray lets it see."""
    if not job.worker.device.startswith(CUDA):
        return job
    worker = msgspec.structs.replace(job.worker, device=f"{CUDA}:0")
    return msgspec.structs.replace(job, worker=worker)


STORE_BYTES = 80 << 20
"""Size of the object store of a Ray that is started here; nothing of ours is in it."""
HEAD_CPUS = 1.0
"""CPUs for the controller, the gateway and what else is beside them."""
CLIENT = "ray://"

Node = Mapping[str, Any]
"""One of Ray's nodes, as ``ray.nodes()`` has it."""


def cluster_on_ray(
    config: Config, address: str, say: Callable[[str], None], step: Callable[[str], None] = no_step
) -> RayCluster:
    """Return the cluster of a configuration on a Ray cluster, to which this process connects.

    Raises `ConfigError` if there is no such cluster, it has too little, or this is not one of its nodes.
    """
    if address.startswith(CLIENT):
        raise ConfigError(
            f"--ray {address}: controller and gateway run on the node of mainspring up; run it on a node of "
            "the Ray cluster, with --ray auto"
        )
    ray = connect(address, include_dashboard=False, object_store_memory=STORE_BYTES)
    try:
        return _planned(config, address, ray, say, step)
    except BaseException:
        ray.shutdown()
        raise


def _planned(
    config: Config, address: str, ray: Any, say: Callable[[str], None], step: Callable[[str], None]
) -> RayCluster:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    own_id = ray.get_runtime_context().get_node_id()
    here = next((node for node in nodes if node["NodeID"] == own_id), None)
    if here is None:
        raise ConfigError(f"this machine is not a node of the Ray cluster at {address}: ray start --address")
    plan = make_plan(adapted(config, "" if address == LOCAL else here["NodeManagerAddress"]))
    wanted = worker_resources(plan.pool.config)
    check_resources(nodes, here, wanted, plan.cluster.workers, ray.available_resources())
    return RayCluster(plan, ray, here, say, step)


def adapted(config: Config, host: str) -> Config:
    """Return a configuration whose processes find each other from any node.

    ``host`` is this node's address; the controller listens there, which takes keys, unless it is a
    loopback's. Empty: there will never be another node.
    """
    replace = msgspec.structs.replace
    # Which cores a process may have to itself is its node's matter, and Ray gives none.
    config = replace(config, worker=replace(config.worker, realtime=False))
    controller, worker = config.controller, config.worker
    if not host:
        return config
    if config.shards.number > 1 and not config.shards.controllers:
        raise ConfigError(
            "several controllers on Ray: [shards] controllers has to name where they listen, such as "
            f"['tcp://{host}:7401', 'tcp://{host}:7402']"
        )
    if not is_tcp(controller.address):
        controller = replace(controller, address=f"tcp://{host}:{free_ports(1)[0]}")
    if not worker.data_address and reaches_beyond(controller.address):
        worker = replace(worker, data_address="tcp://0.0.0.0:*")
    return replace(config, controller=controller, worker=worker)


def check_resources(
    nodes: Sequence[Node], here: Node, wanted: Resources, count: int, free: Resources
) -> None:
    """Raise `ConfigError` if no node has what a worker needs, or all together have too little left.

    ``here`` is the node for controller and gateway.
    """
    if not any(fits(wanted, each["Resources"]) for each in nodes):
        there = "; ".join(f"{each['NodeName']} has {shown(each['Resources'])}" for each in nodes)
        raise ConfigError(
            f"a worker needs {shown(wanted)}, and no node of the Ray cluster has as much: {there}"
        )
    head = {"CPU": HEAD_CPUS}
    if not fits(head, here["Resources"]):
        raise ConfigError(
            f"controller and gateway need {shown(head)} on this node, {here['NodeName']}, which has "
            f"{shown(here['Resources'])}: run mainspring up on another node"
        )
    total = {name: amount * count for name, amount in wanted.items()}
    total["CPU"] = total.get("CPU", 0.0) + HEAD_CPUS
    if not fits(total, free):
        raise ConfigError(
            f"{count} workers need {shown(wanted)} each, and controller and gateway {shown(head)} together; "
            f"what is free in the Ray cluster is {shown(free)}: take fewer --workers, or add nodes"
        )


def fits(wanted: Resources, there: Mapping[str, float]) -> bool:
    """Return whether resources are there."""
    return all(there.get(name, 0.0) >= amount for name, amount in wanted.items())


class RayCluster(Running):
    """The processes of one plan, on Ray."""

    def __init__(
        self,
        plan: Plan,
        ray: Any,
        here: Node,
        say: Callable[[str], None],
        step: Callable[[str], None] = no_step,
    ) -> None:
        """``here`` is the node for what is not a worker."""
        super().__init__(plan, say, step)
        self._ray = ray
        self._here = next(name for name in here["Resources"] if _names_node(name))
        self._head: dict[str, Child] = {}
        self._workers: RayWorkers | None = None

    def pid(self, name: str) -> int:
        """Return the process id of the process of this name as it was last seen, on whichever node; 0 for
        one that was not."""
        return next((child.pid for child in self._children() if child.name == name), 0)

    @property
    def _runner(self) -> Runner:
        assert self._workers is not None
        return self._workers

    @property
    def _logs(self) -> str:
        return "`ray list actors` says where each process is, and `ray logs actor --id ID` what it printed"

    def _start(self) -> None:
        setting = Setting(self._ray, os.getcwd())
        group = placed({"CPU": HEAD_CPUS, self._here: 0.001})
        for job in self._jobs:
            if not isinstance(job, WorkerJob):
                self._step(f"starting {job.name}")
                self._head[job.name] = Child(setting, job, group, {})
        self._workers = RayWorkers(setting, self.plan.pool, self._say)

    def _tend(self) -> None:
        assert self._workers is not None
        now_s = time.monotonic()
        for child in self._head.values():
            if news := child.tend(now_s):
                self._say(news)
        self._workers.tend(now_s)
        if self._serving:
            return
        for child in self._children():
            if child.essential and child.fault and child.starts >= STARTS_BEFORE_READY:
                raise ClusterError(f"{child.fault}; so it was at each of {child.starts} starts")

    def _children(self) -> list[Child]:
        workers = [] if self._workers is None else self._workers.children()
        return [*self._head.values(), *workers]

    def _stop(self) -> None:
        give_up_s = time.monotonic() + self.plan.cluster.stop_timeout_s
        for role in self.plan.stop_order:
            leaving = [self._head[name] for name in role if name in self._head]
            self._step(f"stopping {', '.join(role)}")
            for child in leaving:
                child.leave(give_up_s)
            while leaving := [child for child in leaving if not child.left(time.monotonic())]:
                time.sleep(STOP_POLL_S)
        if self._workers is not None:
            self._step("stopping workers")
            self._workers.stop(give_up_s)
        self._ray.shutdown()


def _names_node(resource: str) -> bool:
    """Return whether a resource of a node stands for that node, such as ``node:10.0.0.1``."""
    return resource.startswith("node:") and not resource.startswith("node:__")
