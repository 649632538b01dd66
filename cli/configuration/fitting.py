"""What a cluster or a worker takes of a machine's memory: defaults that fit its limits; what can't fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.cli.configuration.config import Config, Tables, merged
from mainspring.cli.configuration.tables import ConfigError
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import DEFAULT_PAGES, MIB, WorkerConfig
from mainspring.worker.limits import Limits, size

BESIDE_BYTES = 80 * MIB
"""Of a controller, a gateway or a console: 40 to 70 MB when they begin."""
WORKER_BYTES = 128 * MIB
"""Of a worker beside its pages and IO memory: 90 MB when it begins, and what kernels compute on the way."""
DEFAULT_SHARE = 0.8
"""Of the memory, the most that defaults take: the rest is for peaks, and for files that are mapped."""
IO_SHARE = 4
"""By default at most this part of a worker's memory is for inputs and outputs."""
FEWEST_PAGES = 1


def with_limits(tables: Tables, limits: Limits) -> dict[str, dict[str, Any]]:
    """Return a cluster's tables; where they don't say how many pages or how much IO memory a worker has, as
    much as the memory allows, and no more than otherwise."""
    cluster = tables.get("cluster", {})
    workers = cluster.get("workers", 1)
    sleeps = cluster.get("engine") == "emulated" or tables.get("devices")
    takes_memory = cluster.get("device", "cpu") == "cpu" and not sleeps
    if limits.memory_bytes is None or not takes_memory or not isinstance(workers, int) or workers < 1:
        return merged(tables, {})
    beside = (2 + bool(cluster.get("console", True))) * BESIDE_BYTES
    each = (DEFAULT_SHARE * limits.memory_bytes - beside) / workers
    return merged({"worker": defaults(each, tables.get("worker", {}))}, tables)


def defaults(memory_bytes: float, given: Mapping[str, object]) -> dict[str, int]:
    """Return pages and IO memory of a worker on a CPU that is to take so much memory, where not ``given``."""
    room = memory_bytes - WORKER_BYTES
    io_bytes = max(MIB, min(WorkerConfig(name="worker").io_bytes, int(room / IO_SHARE) // MIB * MIB))
    own = given.get("io_bytes")
    left = room - (own if isinstance(own, int) else io_bytes)
    pages = max(FEWEST_PAGES, min(DEFAULT_PAGES, int(left // PAGE_BYTES)))
    return {"io_bytes": io_bytes, "pages": pages}


def check_fits(config: Config, limits: Limits, workers: int) -> None:
    """Raise `ConfigError` if so many workers, and what is beside them, can't have the memory they ask for."""
    cluster = config.cluster
    if cluster.device != "cpu" or cluster.engine == "emulated":
        return
    beside = (2 + cluster.console) * BESIDE_BYTES
    told = f"{workers} workers need" if workers > 1 else "the worker needs"
    check_memory(f"{told}, with gateway and controller,", config.worker, limits, workers, beside)


def check_memory(who: str, worker: WorkerConfig, limits: Limits, workers: int = 1, beside: int = 0) -> None:
    """Raise `ConfigError` if workers of this kind, with ``beside`` bytes, need more memory than there is."""
    each = worker.pages * PAGE_BYTES + worker.io_bytes + WORKER_BYTES
    needed, limit = workers * each + beside, limits.memory_bytes
    if limit is None or needed <= limit:
        return
    held = f"the memory is limited to {size(limit)} ({limits.memory_by})"
    raise ConfigError(
        f"{who} {size(needed)} of memory ({worker.pages} pages of 16 MiB, {size(worker.io_bytes)} for inputs "
        f"and outputs and {size(WORKER_BYTES)} beside{' each' if workers > 1 else ''}), and "
        f"{held if limits.memory_by else f'this machine has {size(limit)}'}: give fewer --pages or less "
        "[worker] io_bytes, or raise the limit"
    )
