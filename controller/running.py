"""Run a controller: alone, or as one of several that share a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from mainspring.controller import candidate
from mainspring.controller.config import ControllerConfig
from mainspring.controller.recovery import Awaited
from mainspring.controller.server import Controller, Door
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import ModelSpec
from mainspring.messages.served import ServedModel
from mainspring.scheduler.config import SchedulerConfig


def run(
    config: ControllerConfig,
    scheduler_config: SchedulerConfig,
    models: Sequence[ModelSpec],
    stop: threading.Event,
    on_ready: Callable[[str], None] | None = None,
    served: Sequence[ServedModel] = (),
    awaited: Awaited | None = None,
    graphs: Sequence[GraphSpec] = (),
) -> None:
    """Run a controller until ``stop`` is set and it has drained.

    ``on_ready`` is called with the address, the real port included, once peers can connect; ``served`` are a
    repository's models as clients know them, ``awaited`` is what could not be read, ``graphs`` are the
    configured ones. Raises OSError that names
    the address if it is taken, or the state file if it can't be used, and ValueError on an unknown policy or
    a model that can't be served.
    """
    if config.lease:
        make = partial(_make, config, models, served, awaited, graphs)
        candidate.run(config, scheduler_config, stop, on_ready, make)
        return
    controller = Controller(config, scheduler_config, models, served, awaited, graphs)
    if on_ready is not None:
        on_ready(controller.address)
    controller.serve(stop)


def _make(
    config: ControllerConfig,
    models: Sequence[ModelSpec],
    served: Sequence[ServedModel],
    awaited: Awaited | None,
    graphs: Sequence[GraphSpec],
    scheduler: SchedulerConfig,
    door: Door,
) -> Controller:
    return Controller(config, scheduler, models, served, awaited, graphs, door)
