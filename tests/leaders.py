"""The controllers of a cluster that share a lease, and how the one that leads is taken away."""

from __future__ import annotations

import os
import signal
import socket
import time

from mainspring.cli.launcher.jobs import ControllerJob
from mainspring.cli.launcher.process_plan import Plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.controller.lease_files import open_store
from mainspring.transport.local import PREFIX as LOCAL
from tests.patience import PATIENCE_S

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "hand over": signal.SIGTERM}


class Leaders:
    """The controllers of a cluster by their lease."""

    def __init__(self, plan: Plan, cluster: LocalCluster) -> None:
        controllers = [job for job in plan.jobs if isinstance(job, ControllerJob)]
        self._store = open_store(controllers[0].controller.lease, "looks", "")
        self._cluster = cluster
        self.names = {job.controller.address: job.name for job in controllers}

    def leader(self) -> tuple[int, str]:
        """Return the epoch and the name of the process that leads; wait for one."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            lease = self._store.look(time.monotonic_ns())
            if lease is not None and lease.held and lease.address in self.names:
                return lease.epoch, self.names[lease.address]
            time.sleep(0.005)
        raise AssertionError("no controller leads")

    def all_there(self) -> bool:
        """Return whether every controller listens."""
        return all(listens(address) for address in self.names)

    def end(self, event: str) -> int:
        """Take the leader away; return its process."""
        _, name = self.leader()
        pid = self._cluster.supervisor.pid(name)
        if pid is None:
            raise AssertionError(f"{name} does not run")
        os.kill(pid, SIGNALS[event])
        return pid


def listens(address: str) -> bool:
    """Return whether a process accepts connections at a socket's path."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address.removeprefix(LOCAL)) == 0
