"""The jobs of child processes: one for each kind of process, written to a file as JSON."""

from __future__ import annotations

import threading

import msgspec

from mainspring.cli.launcher.models import ModelSource
from mainspring.console.config import ConsoleConfig
from mainspring.controller.config import ControllerConfig
from mainspring.gateway.config import GatewayConfig
from mainspring.messages.graphs import GraphSpec
from mainspring.repository.config import RepositoryConfig
from mainspring.scheduler.config import SchedulerConfig
from mainspring.transport.config import TransportConfig
from mainspring.worker.config import WorkerConfig


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Name of the process in logs and messages; unique in the cluster."""
    parent_pid: int = 0
    cores: tuple[int, ...] = ()
    """Cores that it may use; empty for any."""
    log_level: str = "WARNING"
    log_format: str = "text"
    transport: TransportConfig = TransportConfig()
    """Bounds of its listeners."""
    nice: int = 0
    """Niceness of the process, added to that of its parent; below 0 where the user may."""
    priority: int = 0
    """Real-time priority (SCHED_FIFO) of the process where the user may; 0 for none."""
    essential: bool = True
    """True if the cluster can't begin to serve without it."""
    lent_cores: tuple[int, ...] = ()
    """Cores in place of ``cores`` if it gets its real-time priority; empty for no others."""


class ControllerJob(_Job, frozen=True, kw_only=True, tag="controller"):
    """Run the controller for these models."""

    controller: ControllerConfig
    scheduler: SchedulerConfig
    models: ModelSource
    graphs: tuple[GraphSpec, ...] = ()
    """Graphs of models that the configuration names."""

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set."""
        from mainspring.cli.launcher.models import read
        from mainspring.controller.running import run

        # The store was there when the cluster started: a controller that starts again goes on without it.
        specs, awaited = read(self.models, stop, adopt=True)
        repositorys, served = self.models.served()
        models = [*specs, *repositorys]
        run(self.controller, self.scheduler, models, stop, served=served, awaited=awaited, graphs=self.graphs)


class WorkerJob(_Job, frozen=True, kw_only=True, tag="worker"):
    """Run a worker."""

    worker: WorkerConfig

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set."""
        from mainspring.worker.server import run

        run(self.worker, stop)


class GatewayJob(_Job, frozen=True, kw_only=True, tag="gateway"):
    """Run the gateway."""

    gateway: GatewayConfig

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set."""
        from mainspring.gateway.server import run

        run(self.gateway, stop)


class RepositoryJob(_Job, frozen=True, kw_only=True, tag="repository"):
    """Run the model repository."""

    repository: RepositoryConfig

    def run(self, stop: threading.Event) -> None:
        """Keep the cluster as the repository says until ``stop`` is set."""
        from mainspring.repository.server import run

        run(self.repository, stop)


class ConsoleJob(_Job, frozen=True, kw_only=True, tag="console"):
    """Run the operator console."""

    essential: bool = False
    console: ConsoleConfig

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set."""
        from mainspring.console.server import run

        run(self.console, stop)


Job = ControllerJob | WorkerJob | GatewayJob | RepositoryJob | ConsoleJob
