"""The worker processes of a local cluster, as many as its controller wants (`provider.Runner`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.launcher.jobs import Job, WorkerJob
from mainspring.cli.launcher.process import Process
from mainspring.cli.launcher.worker_jobs import WorkerPool
from mainspring.messages.scaling import Offer

RETRY_NS = 2_000_000_000
"""The time until a worker that can't even be described is tried again."""


class _Unmade(msgspec.Struct, frozen=True):
    """A worker that is to run and has no process yet."""

    kind: str
    fault: str
    retry_ns: int


class Crew:
    """Adds worker processes to those that the supervisor tends, and takes them out of them."""

    def __init__(
        self,
        pool: WorkerPool,
        processes: list[Process],
        make: Callable[[Job], Process],
        say: Callable[[str], None],
    ) -> None:
        """``processes`` are all of the cluster's, with the workers that it begins with; ``make`` makes one
        more, which is not started yet."""
        self._pool = pool
        self._processes = processes
        self._make = make
        self._say = say
        self._most = max(pool.config.cluster.max_workers, pool.config.cluster.workers)
        self._stop_ns = round(pool.config.cluster.stop_timeout_s * 1e9)
        self._kinds = {name: kind.kind for kind in pool.kinds for name in kind.first}
        """The kind of each worker that is to run."""
        self._leaving: dict[str, tuple[Process, int]] = {}
        """Workers that were asked to leave, each with the instant at which it is killed."""
        self._unmade: dict[str, _Unmade] = {}

    def offers(self) -> tuple[Offer, ...]:
        """Return what runs, and what is wrong with it."""
        now_ns = time.monotonic_ns()
        faults: dict[str, str] = {self._kinds[name]: each.fault for name, each in self._unmade.items()}
        for process in self._processes:
            kind = self._kinds.get(process.job.name)
            if kind is not None and process.ails(now_ns):
                faults[kind] = process.fault
        return tuple(
            Offer(
                each.kind,
                each.stem,
                self._most,
                tuple([name for name, kind in self._kinds.items() if kind == each.kind]),
                faults.get(each.kind, ""),
                each.price,
            )
            for each in self._pool.kinds
        )

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:  # noqa: ARG002 - `ShardWorkers` keeps those
        """Start the workers that are missing, and tell all others of the kind to leave."""
        for name in [name for name, of_kind in self._kinds.items() if of_kind == kind]:
            if name not in workers:
                self._dismiss(name)
        for name in workers:
            if name not in self._kinds:
                self._kinds[name] = kind
                self._hire(kind, name, time.monotonic_ns())

    def tend(self, now_ns: int) -> None:
        """Try again what could not be started, and end what does not leave."""
        for name, each in list(self._unmade.items()):
            if now_ns >= each.retry_ns:
                del self._unmade[name]
                self._hire(each.kind, name, now_ns)
        for name, (process, kill_ns) in list(self._leaving.items()):
            if process.pid is None:
                process.wait(0.0)
                del self._leaving[name]
                if name in self._kinds:
                    # It was wanted again while it was on its way out.
                    self._hire(self._kinds[name], name, now_ns)
            elif now_ns >= kill_ns:
                self._say(f"{name} did not leave in time: killed")
                process.kill()
                # One that hangs in the kernel takes a while to die even so.
                self._leaving[name] = process, now_ns + self._stop_ns

    @property
    def leaving(self) -> list[Process]:
        """Workers that were asked to leave and have not yet."""
        return [process for process, _ in self._leaving.values()]

    def _hire(self, kind: str, name: str, now_ns: int) -> None:
        if name in self._leaving:
            return
        try:
            process = self._make(self._pool.job(kind, name))
        except ConfigError as error:
            self._unmade[name] = _Unmade(kind, f"{name}: {error}", now_ns + RETRY_NS)
            self._say(f"{name} can't be started: {error}")
            return
        self._processes.append(process)
        # The supervisor starts what is due, and tries again what can't be started.
        process.restart_at_ns = now_ns

    def _dismiss(self, name: str) -> None:
        del self._kinds[name]
        if self._unmade.pop(name, None) is not None:
            return
        for process in self._processes:
            if process.job.name == name and isinstance(process.job, WorkerJob):
                self._processes.remove(process)
                process.terminate()
                self._leaving[name] = process, time.monotonic_ns() + self._stop_ns
                return
