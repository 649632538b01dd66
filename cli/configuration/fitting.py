"""The memory that a cluster or a worker needs of a machine: defaults that fit its limits; what can't fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.cli.configuration.config import AUTO, Config, Tables, merged
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.tables import ConfigError
from mainspring.worker.config import DEFAULT_PAGES, MIB, WorkerConfig
from mainspring.worker.limits import Limits, size

BESIDE_BYTES = 80 * MIB
"""Memory of a controller, a gateway or a console: 40 to 70 MB when they begin."""
WORKER_BYTES = 128 * MIB
"""Memory of a worker beside its pages and IO memory: 90 MB when it begins, and kernels' scratch memory."""
DEFAULT_SHARE = 0.8
"""Largest share of the memory that defaults use: the rest is for peaks, and for files that are mapped."""
IO_SHARE = 4
"""Divisor of a worker's memory: by default at most 1/4 of it is for inputs and outputs."""
FEWEST_PAGES = 1
TVM_ENGINES = ("tvm", AUTO)
"""Engines whose workers on a CPU may need a workspace."""


def with_limits(tables: Tables, limits: Limits) -> dict[str, dict[str, Any]]:
    """Return a cluster's tables; where they don't say how many pages or how much IO memory a worker has, as
    much as the memory allows, and no more than otherwise."""
    cluster = tables.get("cluster", {})
    workers = cluster.get("workers", 1)
    sleeps = cluster.get("engine") == "emulated" or tables.get("devices")
    takes_memory = cluster.get("device", "cpu") == "cpu" and not sleeps
    usable = usable_bytes(limits)
    if usable is None or not takes_memory or not isinstance(workers, int) or workers < 1:
        return merged(tables, {})
    beside = (2 + bool(cluster.get("console", True))) * BESIDE_BYTES
    given = {"engine": cluster.get("engine"), **tables.get("worker", {})}
    return merged({"worker": defaults((usable - beside) / workers, given)}, tables)


def usable_bytes(limits: Limits) -> float | None:
    """Return how much memory defaults take: `DEFAULT_SHARE` of what is there and what others have left of it;
    None if that is not known."""
    if limits.memory_bytes is None:
        return None
    left = limits.memory_bytes if limits.room is None else limits.room.left_bytes
    return DEFAULT_SHARE * min(limits.memory_bytes, left)


def defaults(memory_bytes: float, given: Mapping[str, object]) -> dict[str, int]:
    """Return pages and IO memory of a worker on a CPU that is to take so much memory, where not ``given``.

    ``given`` has its settings, as far as they were given, and ``engine``.
    """
    workspace = given.get("workspace_bytes", WorkerConfig(name="worker").workspace_bytes)
    beside = workspace if given.get("engine") in TVM_ENGINES and isinstance(workspace, int) else 0
    room = memory_bytes - WORKER_BYTES - beside
    io_bytes = max(MIB, min(WorkerConfig(name="worker").io_bytes, int(room / IO_SHARE) // MIB * MIB))
    own = given.get("io_bytes")
    left = room - (own if isinstance(own, int) else io_bytes)
    pages = max(FEWEST_PAGES, min(DEFAULT_PAGES, int(left // PAGE_BYTES)))
    return {"io_bytes": io_bytes, "pages": pages}


def check_fits(config: Config, limits: Limits, workers: int, running: int = 0) -> None:
    """Raise `ConfigError` if the workers, and what is beside them, can't have the memory they ask for.

    So many of the workers are ``running`` already.
    """
    cluster = config.cluster
    if cluster.engine == "emulated":
        return
    # Pages of a GPU are in its own memory, and so is what its kernels compute on the way.
    own: dict[str, Any] = {"engine": cluster.engine} if cluster.device == "cpu" else {"pages": 0}
    worker = msgspec.structs.replace(config.worker, **own)
    beside = (2 + cluster.console) * BESIDE_BYTES
    told = f"{workers} workers need" if workers > 1 else "the worker needs"
    check_memory(f"{told}, with gateway and controller,", worker, limits, workers, beside, running)


def check_memory(
    who: str, worker: WorkerConfig, limits: Limits, workers: int = 1, beside: int = 0, running: int = 0
) -> None:
    """Raise `ConfigError` if workers of this kind, with ``beside`` bytes, need more memory than there is, or
    those of them that are not ``running`` more than what others have left of it."""
    workspace = worker.workspace_bytes if worker.pages and worker.engine in TVM_ENGINES else 0
    each = worker.pages * PAGE_BYTES + worker.io_bytes + WORKER_BYTES + workspace
    parts = [f"{worker.pages} pages of 16 MiB"] if worker.pages else []
    parts += [f"{size(workspace)} for kernels"] if workspace else []
    parts.append(f"{size(worker.io_bytes)} for inputs and outputs and {size(WORKER_BYTES)} beside")
    needed, limit = workers * each + beside, limits.memory_bytes
    more = (workers - running) * each + (0 if running else beside)
    if limit is not None and needed > limit:
        held = f"the memory is limited to {size(limit)} ({limits.memory_by})"
        told = f"{size(needed)} of memory", held if limits.memory_by else f"this machine has {size(limit)}"
        remedy = "or raise the limit"
    elif limits.room is not None and more > limits.room.left_bytes:
        left, limit, by = limits.room
        held = f"of {size(limit)} ({by or 'all of this machine'}) others have left {size(left)}"
        told = f"{size(more)}{' more' if running else ''} of memory", held
        remedy = "or stop others"
    else:
        return
    raise ConfigError(
        f"{who} {told[0]} ({', '.join(parts)}{' each' if workers > 1 else ''}), and {told[1]}: give fewer "
        f"--pages or less [worker] io_bytes, {remedy}"
    )
