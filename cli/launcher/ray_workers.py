"""Workers as actors of Ray, as many as the cluster's controller wants (`provider.Runner`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.launcher.jobs import WorkerJob
from mainspring.cli.launcher.ray_children import RETRY_S, Child, Resources, Setting, placed
from mainspring.cli.launcher.worker_jobs import WorkerPool
from mainspring.compiler.artifact.manifest import CUDA
from mainspring.messages.scaling import Offer

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
